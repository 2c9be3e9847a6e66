#!/usr/bin/env python3
"""Records what a real OSD's object classes do: record.py CONF KEYRING|- POOL VERSION >vNN.json

Every step is a call with its input, its result and, under "after", what it has changed in the
object: null when the object is gone, else its new data, attributes and omap keys, a removed one
with null. Needs librados.so.2 and nothing else. The cluster may be made with
`cargo run -p ublk-rbd-tests --bin ceph-cluster -- start --version 16 --auth none DIR`.
"""
import ctypes as C
import json
import re
import struct
import sys
import time

CONF, KEYRING, POOL, VERSION = sys.argv[1:]
R = C.CDLL("librados.so.2")
P = C.c_void_p


def check(r, what):
    if r < 0:
        raise OSError(-r, what)
    return r


cluster, io = P(), P()
check(R.rados_create2(C.byref(cluster), b"ceph", b"client.admin", C.c_uint64(0)), "create")
check(R.rados_conf_read_file(cluster, CONF.encode()), "conf")
if KEYRING != "-":
    check(R.rados_conf_set(cluster, b"keyring", KEYRING.encode()), "keyring")
check(R.rados_connect(cluster), "connect")
check(R.rados_ioctx_create(cluster, POOL.encode(), C.byref(io)), "ioctx")
R.rados_get_instance_id.restype = C.c_uint64
addrs = P()
check(R.rados_getaddrs(cluster, C.byref(addrs)), "addrs")
ORIGIN = [R.rados_get_instance_id(cluster), C.string_at(addrs).decode()]

# Encoding -----------------------------------------------------------------------------------


def u8(v): return struct.pack("<B", v)
def u32(v): return struct.pack("<I", v)
def u64(v): return struct.pack("<Q", v & 0xFFFFFFFFFFFFFFFF)
def s(v): return u32(len(v)) + (v if isinstance(v, bytes) else v.encode())
def t(sec, nsec=0): return u32(sec) + u32(nsec)
def ver(v, compat, *body): return u8(v) + u8(compat) + s(b"".join(body))
def m(pairs): return u32(len(pairs)) + b"".join(k + v for k, v in pairs)


NOSNAP = u64(-2)
U64MAX = u64(-1)

# Objects ------------------------------------------------------------------------------------


def dump(oid):
    size, mtime = C.c_uint64(), C.c_long()
    if R.rados_stat(io, oid, C.byref(size), C.byref(mtime)) < 0:
        return None
    buf = C.create_string_buffer(max(size.value, 1))
    n = check(R.rados_read(io, oid, buf, C.c_size_t(size.value), C.c_uint64(0)), "read")
    data = buf.raw[:n]
    attrs, it = {}, P()
    check(R.rados_getxattrs(io, oid, C.byref(it)), "getxattrs")
    while True:
        name, val, length = C.c_char_p(), P(), C.c_size_t()
        check(R.rados_getxattrs_next(it, C.byref(name), C.byref(val), C.byref(length)), "next")
        if not name.value:
            break
        attrs[name.value.hex()] = C.string_at(val, length.value).hex()
    R.rados_getxattrs_end(it)
    omap, after, more = {}, b"", True
    while more:
        R.rados_create_read_op.restype = P
        op, it, pmore, prval = P(R.rados_create_read_op()), P(), C.c_ubyte(), C.c_int()
        R.rados_read_op_omap_get_vals2(op, after, b"", C.c_uint64(1000), C.byref(it), C.byref(pmore), C.byref(prval))
        check(R.rados_read_op_operate(op, io, oid, 0), "omap")
        while True:
            k, v, kl, vl = P(), P(), C.c_size_t(), C.c_size_t()
            check(R.rados_omap_get_next2(it, C.byref(k), C.byref(v), C.byref(kl), C.byref(vl)), "next2")
            if not k.value:
                break
            after = C.string_at(k, kl.value)
            omap[after.hex()] = C.string_at(v, vl.value).hex() if v.value else ""
        R.rados_omap_get_end(it)
        R.rados_release_read_op(op)
        more = pmore.value != 0 and b"\0" not in after
    return {"data": data.hex(), "attrs": attrs, "omap": omap}


steps, seen = [], {}
UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def changed(old, new):
    """All bytes stored now that were not before."""
    old, new = old or {}, new or {}
    for part in ("attrs", "omap"):
        was = old.get(part, {})
        for key, value in new.get(part, {}).items():
            if was.get(key) != value:
                yield bytes.fromhex(key)
                yield bytes.fromhex(value)


def clock(values, low, high):
    for value in values:
        for at in range(len(value) - 7):
            sec, nsec = struct.unpack_from("<II", value, at)
            if low - 2 <= sec <= high + 2 and nsec < 1000000000:
                return [sec, nsec]
    return None


def difference(was, now):
    if now is None:
        return None
    was, after = was or {}, {}
    if now["data"] != was.get("data", ""):
        after["data"] = now["data"]
    for part in ("attrs", "omap"):
        old, new = was.get(part, {}), now[part]
        changes = {k: new.get(k) for k in sorted(old | new) if old.get(k) != new.get(k)}
        if changes:
            after[part] = changes
    return after


def note(step, oid):
    now = dump(oid)
    was = seen.get(oid)
    if now != was:
        step["after"] = difference(was, now)
    seen[oid] = now
    steps.append(step)
    return was, now


def once(oid, cls, method, data, lasts=0):
    out = C.create_string_buffer(1 << 20)
    low = int(time.time())
    r = R.rados_exec(io, oid, cls.encode(), method.encode(), data, C.c_size_t(len(data)), out, C.c_size_t(1 << 20))
    high = int(time.time())
    step = {"object": oid.decode(), "class": cls, "method": method, "in": data.hex(), "code": min(r, 0)}
    if r > 0:
        step["out"] = out.raw[:r].hex()
    was, now = note(step, oid)
    new = list(changed(was, now))
    when = clock(new, low + lasts, high + lasts)
    if when:
        step["now"] = [when[0] - lasts, when[1]]
    for value in new:
        uuid = UUID.search(value)
        if uuid and uuid.group() not in data and not any(uuid.group() in o for o in map(bytes.fromhex, ((was or {}).get("omap") or {}).values())):
            step["random"] = uuid.group().replace(b"-", b"").decode()
    return r


def call(oid, method, *data, cls="rbd", cut=True, lasts=0):
    """A call, after the same one with its last byte missing."""
    data = b"".join(data)
    if cut and data:
        once(oid, cls, method, data[:-1])
    return once(oid, cls, method, data, lasts)


def raw(oid, data=None, omap=None, create=False, remove=False):
    """Changes an object without a class."""
    if remove:
        R.rados_remove(io, oid)
    if create:
        check(R.rados_write_full(io, oid, b"", C.c_size_t(0)), "create")
    if data is not None:
        check(R.rados_write_full(io, oid, data, C.c_size_t(len(data))), "write")
    if omap:
        R.rados_create_write_op.restype = P
        op = P(R.rados_create_write_op())
        n = len(omap)
        keys = (C.c_char_p * n)(*omap.keys())
        vals = (C.c_char_p * n)(*omap.values())
        kl = (C.c_size_t * n)(*map(len, omap.keys()))
        vl = (C.c_size_t * n)(*map(len, omap.values()))
        R.rados_write_op_omap_set2(op, keys, vals, kl, vl, C.c_size_t(n))
        check(R.rados_write_op_operate2(op, io, oid, None, 0), "omap set")
        R.rados_release_write_op(op)
    note({"object": oid.decode()}, oid)


# What is recorded ---------------------------------------------------------------------------


def headers():
    h = b"hdr"
    for method in ("get_size", "get_features", "get_flags"):
        call(h, method, NOSNAP)
    call(h, "create", u64(8 << 20), u8(22), u64(1 << 20), s("rbd_data.a"))
    call(h, "create", u64(8 << 20), u8(22), u64(1), s(""))
    call(h, "create", u64(8 << 20), u8(22), u64(1 | 1 << 8), s("rbd_data.a"))
    call(h, "create", u64(8 << 20), u8(22), u64(1 | 1 << 7), s("rbd_data.a"))
    call(h, "create", u64(8 << 20), u8(22), u64(1), s("rbd_data.a"), u64(4))
    call(h, "create", u64(8 << 20), u8(22), u64(0x3f), s("rbd_data.a"), cut=False)
    call(h, "create", u64(8 << 20), u8(22), u64(0x3f), s("rbd_data.a"), cut=False)
    call(b"hdrpool", "create", u64(8 << 20), u8(22), u64(1 | 1 << 7), s("rbd_data.2.a"), u64(4), cut=False)
    call(b"hdrpool", "get_data_pool")
    call(h, "get_data_pool")
    call(h, "get_object_prefix")
    call(h, "get_all_features")
    call(h, "get_size", NOSNAP)
    call(h, "get_size", u64(4))
    call(h, "get_features", NOSNAP, u8(0))
    call(h, "get_features", NOSNAP, u8(1))
    call(h, "get_features", NOSNAP)
    call(h, "set_features", u64(1 << 6), u64(1 << 6))
    call(h, "set_features", u64(0), u64(1 << 6))
    call(h, "set_features", u64(0), u64(1 << 5))
    call(h, "set_features", u64(1 << 5), u64(1 << 5))
    call(h, "set_features", u64(0), u64(1))
    call(h, "set_features", u64(1 << 8), u64(1 << 8))
    call(h, "set_features", u64(1 << 40), u64(1 << 40))
    for which in ("create", "access", "modify"):
        call(h, "get_%s_timestamp" % which)
    for which in ("access", "modify"):
        call(h, "set_%s_timestamp" % which)
        call(b"nosuch", "set_%s_timestamp" % which)
    raw(b"bare", create=True)
    call(b"bare", "get_create_timestamp")
    call(b"bare", "get_object_prefix")
    call(b"bare", "get_stripe_unit_count")
    call(b"bare", "get_snapcontext")
    call(b"bare", "get_parent", NOSNAP)
    call(b"bare", "parent_get")
    call(b"bare", "parent_overlap_get", NOSNAP)
    call(b"bare", "set_features", u64(1 << 6), u64(1 << 6))
    call(h, "get_stripe_unit_count")
    call(h, "set_stripe_unit_count", u64(65536), u64(16))
    call(h, "set_stripe_unit_count", u64(100000), u64(16))
    call(h, "set_stripe_unit_count", u64(8 << 20), u64(1))
    call(h, "set_stripe_unit_count", u64(0), u64(1))
    call(h, "get_stripe_unit_count")
    call(b"hdrpool", "set_stripe_unit_count", u64(65536), u64(16))
    call(b"hdrpool", "get_stripe_unit_count")
    call(h, "get_flags", NOSNAP)
    call(h, "set_flags", u64(3), u64(1), NOSNAP)
    call(h, "set_flags", u64(2), u64(3))
    call(h, "get_flags", NOSNAP)
    call(h, "get_flags", u64(77))
    call(h, "op_features_get")
    call(h, "op_features_set", u64(5), u64(5))
    call(h, "op_features_get")
    call(h, "op_features_set", u64(0), u64(4))
    call(h, "op_features_set", u64(16), u64(16))
    call(h, "op_features_set", u64(0), u64(15))
    call(b"bare", "op_features_set", u64(1), u64(1))
    raw(b"odd", omap={b"size": b"\1\2", b"features": b"\1", b"snapshot_0000000000000001": b"\1", b"order": b""})
    for method in ("get_size", "get_features", "get_flags", "set_size"):
        call(b"odd", method, NOSNAP)
    call(b"odd", "get_size", u64(1))
    call(b"odd", "snapshot_get", u64(1))
    call(b"odd", "parent_get")
    call(b"nosuch", "set_size", u64(1))


def usr(): return ver(1, 1, u32(0))


def snapshots():
    h = b"snap"
    call(b"nosuch", "snapshot_add", s("a"), u64(1))
    call(h, "create", u64(8 << 20), u8(22), u64(0x3d), s("rbd_data.a"), cut=False)
    call(h, "get_snapcontext")
    call(h, "snapshot_add", s("one"), u64(4), usr())
    call(h, "snapshot_add", s("two"), u64(5))
    call(h, "snapshot_add", s("old"), u64(3))
    call(h, "snapshot_add", s("one"), u64(7))
    call(h, "snapshot_add", s("x"), u64(5))
    call(h, "snapshot_add", s("x"), u64(-1))
    call(h, "snapshot_add", s("x"), u64(9), ver(1, 1, u32(17)))
    call(h, "snapshot_add", s("grp"), u64(10), ver(1, 1, u32(1), u64(2), s("gid"), s("gsid")))
    call(h, "snapshot_add", s("grp"), u64(11), ver(1, 1, u32(1), u64(2), s("gid"), s("other")))
    call(h, "snapshot_add", s("grp"), u64(12), ver(1, 1, u32(1), u64(2), s("gid"), s("other")))
    mirror = ver(1, 1, u32(3), u8(0), u8(1), m([(s("peer-a"), b""), (s("peer-b"), b"")]), s("prim"), u64(7), u64(9), m([(u64(1), u64(2))]))
    call(h, "snapshot_add", s("mir"), u64(13), mirror)
    call(h, "snapshot_add", s("non"), u64(14), mirror.replace(u32(3) + u8(0), u32(3) + u8(2)))
    call(h, "get_snapcontext")
    for i in (4, 10, 13, 99):
        call(h, "snapshot_get", u64(i))
    call(h, "snapshot_get", NOSNAP)
    call(h, "get_snapshot_name", u64(4))
    call(h, "get_snapshot_name", u64(99))
    call(h, "get_snapshot_name", NOSNAP)
    call(h, "get_snapshot_timestamp", u64(4))
    call(h, "get_snapshot_timestamp", NOSNAP)
    call(h, "get_size", u64(4))
    call(h, "set_size", u64(4 << 20))
    call(h, "get_size", u64(4))
    call(h, "get_flags", u64(4))
    call(h, "set_flags", u64(1), u64(1), u64(4))
    call(h, "get_flags", u64(4))
    call(h, "snapshot_rename", u64(4), s("uno"))
    call(h, "snapshot_rename", u64(4), s("two"))
    call(h, "snapshot_rename", u64(99), s("z"))
    call(h, "snapshot_rename", u64(10), s("z"))
    call(h, "get_protection_status", u64(4))
    call(h, "set_protection_status", u64(4), u8(2))
    call(h, "set_protection_status", u64(4), u8(3))
    call(h, "set_protection_status", u64(99), u8(1))
    call(h, "set_protection_status", NOSNAP, u8(1))
    call(h, "get_protection_status", u64(4))
    call(h, "get_protection_status", NOSNAP)
    call(h, "snapshot_remove", u64(4))
    call(h, "snapshot_trash_add", u64(4))
    call(h, "set_protection_status", u64(4), u8(0))
    call(h, "snapshot_trash_add", u64(4))
    call(h, "snapshot_trash_add", u64(4))
    call(h, "snapshot_trash_add", u64(99))
    call(h, "op_features_get")
    call(h, "snapshot_add", s("t"), u64(15), ver(1, 1, u32(2), s("was"), u32(0)))
    call(h, "snapshot_rename", u64(4), s("z"))
    call(h, "snapshot_remove", u64(4))
    call(h, "snapshot_remove", u64(15))
    call(h, "snapshot_remove", u64(99))
    call(h, "mirror_image_snapshot_unlink_peer", u64(13), s("peer-a"))
    call(h, "mirror_image_snapshot_unlink_peer", u64(13), s("peer-x"))
    call(h, "mirror_image_snapshot_unlink_peer", u64(5), s("peer-x"))
    call(h, "mirror_image_snapshot_unlink_peer", u64(99), s("peer-x"))
    call(h, "mirror_image_snapshot_set_copy_progress", u64(14), u8(0), u64(55))
    call(h, "mirror_image_snapshot_set_copy_progress", u64(13), u8(1), u64(56))
    call(h, "mirror_image_snapshot_set_copy_progress", u64(5), u8(1), u64(56))
    call(h, "snapshot_get_limit")
    call(h, "snapshot_set_limit", u64(2))
    call(h, "snapshot_set_limit", u64(6))
    call(h, "snapshot_get_limit")
    call(h, "snapshot_add", s("six"), u64(20))
    call(h, "snapshot_add", s("seven"), u64(21))
    call(h, "snapshot_set_limit", U64MAX)
    call(h, "snapshot_get_limit")
    for i in range(100, 240):
        call(h, "snapshot_add", s("many%d" % i), u64(i), cut=False)
    call(h, "get_snapcontext")
    call(h, "snapshot_add", s("many101"), u64(300))
    call(b"plain", "create", u64(8 << 20), u8(22), u64(0), s("rbd_data.p"), cut=False)
    call(b"plain", "set_protection_status", u64(4), u8(2))
    call(b"nosuch", "snapshot_set_limit", u64(3))
    raw(b"nosuch", remove=True)


def spec(pool, ns, image, snap): return ver(1, 1, u64(pool), s(ns), s(image), snap)


def parents():
    for features in (0x3d, 0x1d):
        h = b"kid%x" % features
        call(b"nosuch", "parent_attach", spec(2, "", "par", u64(7)), u64(9))
        call(h, "create", u64(8 << 20), u8(22), u64(features), s("rbd_data.k"), cut=False)
        call(h, "parent_get")
        call(h, "parent_overlap_get", NOSNAP)
        call(h, "get_parent", NOSNAP)
        call(h, "parent_detach")
        call(h, "parent_attach", spec(2, "", "par", u64(7)), u64(0))
        call(h, "parent_attach", spec(-1, "", "par", u64(7)), u64(9))
        call(h, "parent_attach", spec(2, "", "", u64(7)), u64(9))
        call(h, "parent_attach", spec(2, "", "par", NOSNAP), u64(9))
        call(h, "parent_attach", spec(2, "ns", "par", u64(7)), u64(16 << 20))
        call(h, "op_features_set", u64(2), u64(2))
        call(h, "parent_attach", spec(2, "ns", "par", u64(7)), u64(16 << 20), cut=False)
        call(h, "parent_attach", spec(2, "ns", "par", u64(7)), u64(4 << 20), u8(1), cut=False)
        call(h, "parent_get")
        call(h, "parent_overlap_get", NOSNAP)
        call(h, "get_parent", NOSNAP)
        call(h, "remove_parent")
        call(h, "snapshot_add", s("s1"), u64(4), usr(), cut=False)
        call(h, "parent_overlap_get", u64(4))
        call(h, "parent_overlap_get", u64(99))
        call(h, "get_parent", u64(4))
        call(h, "set_size", u64(1 << 20), cut=False)
        call(h, "parent_overlap_get", NOSNAP)
        call(h, "snapshot_add", s("s2"), u64(5), usr(), cut=False)
        call(h, "parent_detach")
        call(h, "parent_detach")
        call(h, "parent_get")
        call(h, "parent_attach", spec(3, "", "new", u64(8)), u64(9), cut=False)
        call(h, "parent_attach", spec(2, "ns", "par", u64(7)), u64(9), cut=False)
        call(h, "parent_detach")
        call(h, "snapshot_remove", u64(4))
        call(h, "snapshot_remove", u64(5))
        call(h, "set_parent", u64(2), s("par"), u64(7), u64(4 << 20))
        call(h, "set_parent", u64(2), s("par"), u64(7), u64(4 << 20), cut=False)
        call(h, "get_parent", NOSNAP)
        call(h, "snapshot_add", s("s3"), u64(6), usr(), cut=False)
        call(h, "get_parent", u64(6))
        call(h, "get_parent", u64(99))
        call(h, "remove_parent")
        call(h, "remove_parent")
    call(b"plain", "set_parent", u64(2), s("par"), u64(7), u64(4 << 20))
    call(b"plain", "remove_parent")
    call(b"plain", "get_parent", NOSNAP)
    # Records as OSDs before Nautilus wrote them.
    h = b"legacy"
    call(h, "create", u64(8 << 20), u8(22), u64(0x1d), s("rbd_data.l"), cut=False)
    old_parent = ver(1, 1, u64(2), s("par"), u64(7), u64(4096))
    for i, overlap in ((4, 4096), (5, 2048)):
        p = ver(1, 1, u64(2), s("par"), u64(7), u64(overlap))
        raw(h, omap={b"snapshot_%016x" % i: ver(8, 1, u64(i), s("old%d" % i), u64(8 << 20), u64(0), p, u8(0), u64(0), usr(), t(1, 2), u32(0), u8(0))})
    call(h, "parent_get")
    call(h, "get_parent", u64(4))
    call(h, "parent_overlap_get", u64(5))
    call(h, "snapshot_get", u64(4))
    call(h, "set_flags", u64(1), u64(1), u64(4), cut=False)
    call(h, "snapshot_rename", u64(5), s("new5"), cut=False)
    call(h, "get_parent", u64(4))
    call(h, "snapshot_remove", u64(4))
    call(h, "snapshot_remove", u64(5))
    raw(h, omap={b"parent": old_parent})
    call(h, "parent_get")
    call(h, "parent_overlap_get", NOSNAP)
    call(h, "set_size", u64(1024), cut=False)
    raw(h, omap={b"snapshot_0000000000000007": ver(3, 1, u64(7), s("v3"), u64(8), u64(0), old_parent, u8(2))})
    call(h, "snapshot_get", u64(7))
    call(h, "get_protection_status", u64(7))
    call(h, "parent_detach")


def child(pool, image, ns): return ver(2, 1, u64(pool), s(image), s(ns))


def children():
    c = b"children"
    call(c, "get_children", u64(2), s("par"), u64(7))
    call(c, "remove_child", u64(2), s("par"), u64(7), s("kid"))
    call(c, "add_child", u64(2), s("par"), u64(7), s("kid"))
    call(c, "add_child", u64(2), s("par"), u64(7), s("kid"))
    call(c, "add_child", u64(2), s("par"), u64(7), s("another"))
    call(c, "get_children", u64(2), s("par"), u64(7))
    call(c, "get_children", u64(2), s("par"), u64(8))
    call(c, "remove_child", u64(2), s("par"), u64(7), s("nokid"))
    call(c, "remove_child", u64(2), s("par"), u64(7), s("kid"))
    call(c, "remove_child", u64(2), s("par"), u64(7), s("another"))
    call(c, "get_children", u64(2), s("par"), u64(7))
    h = b"parent"
    call(h, "create", u64(8 << 20), u8(22), u64(0x3d), s("rbd_data.p"), cut=False)
    call(h, "child_attach", u64(4), child(3, "kid", "ns"))
    call(h, "children_list", u64(4))
    for i in (4, 5, 6):
        call(h, "snapshot_add", s("s%d" % i), u64(i), usr(), cut=False)
    call(h, "children_list", u64(4))
    call(h, "child_attach", u64(4), child(3, "kid", "ns"))
    call(h, "child_attach", u64(4), child(3, "kid", "ns"))
    call(h, "child_attach", u64(4), child(2, "zid", ""))
    call(h, "child_attach", u64(4), child(3, "akid", "zz"))
    call(h, "child_attach", u64(5), ver(1, 1, u64(3), s("kid5")))
    call(h, "children_list", u64(4))
    call(h, "snapshot_get", u64(4))
    call(h, "snapshot_remove", u64(4))
    call(h, "child_detach", u64(4), child(9, "kid", "ns"))
    call(h, "child_detach", u64(99), child(9, "kid", "ns"))
    for spec_ in (child(3, "kid", "ns"), child(2, "zid", "")):
        call(h, "child_detach", u64(4), spec_)
    call(h, "snapshot_trash_add", u64(4))
    call(h, "child_attach", u64(4), child(3, "late", ""))
    call(h, "child_detach", u64(4), child(3, "akid", "zz"))
    call(h, "op_features_get")
    call(h, "child_detach", u64(5), child(3, "kid5", ""))
    call(h, "snapshot_remove", u64(4))
    call(h, "op_features_get")
    raw(h, omap={b"snap_children_0000000000000006": u32(1) + child(1, "a", "")})
    call(h, "child_detach", u64(6), child(1, "a", ""))


def directories():
    d = b"dir"
    call(d, "dir_list", s(""), u64(10))
    call(d, "dir_add_image", s("img"), s("id1"))
    call(d, "dir_add_image", s("img"), s("id2"))
    call(d, "dir_add_image", s("img2"), s("id1"))
    call(d, "dir_add_image", s(""), s("id3"))
    call(d, "dir_add_image", s("img3"), s(""))
    call(d, "dir_add_image", s("img3"), s("no-dash"))
    call(d, "dir_get_id", s("img"))
    call(d, "dir_get_id", s("nope"))
    call(d, "dir_get_name", s("id1"))
    call(d, "dir_get_name", s("nope"))
    call(d, "dir_remove_image", s("img"), s("id9"))
    call(d, "dir_remove_image", s("nope"), s("id9"))
    call(d, "dir_rename_image", s("img"), s("renamed"), s("id1"))
    call(d, "dir_rename_image", s("renamed"), s("renamed"), s("id1"))
    call(d, "dir_rename_image", s("nope"), s("x"), s("id1"))
    call(d, "dir_add_image", s("b"), s("id7"))
    call(d, "dir_remove_image", s("renamed"), s("id7"))
    call(d, "dir_rename_image", s("renamed"), s("b"), s("id1"))
    call(d, "dir_remove_image", s("b"), s("id7"))
    call(d, "dir_state_assert", u8(0))
    call(d, "dir_state_set", u8(1))
    call(d, "dir_state_set", u8(9))
    call(d, "dir_state_set", u8(0))
    call(d, "dir_state_assert", u8(0))
    call(d, "dir_state_assert", u8(1))
    call(d, "dir_list", s(""), u64(10))
    for i in range(150):
        call(d, "dir_add_image", s("n%03d" % i), s("m%d" % i), cut=False)
    call(d, "dir_list", s(""), u64(1000))
    call(d, "dir_list", s(""), u64(0))
    call(d, "dir_list", s("n009"), u64(3))
    call(d, "dir_list", s("zz"), u64(3))
    raw(d, omap={b"name_bad": b"\5\0\0\0a"})
    call(d, "dir_list", s(""), u64(2))
    call(d, "dir_get_id", s("bad"))
    call(b"dir2", "dir_state_set", u8(1))
    call(b"dir2", "dir_state_set", u8(0))
    call(b"dir2", "dir_state_set", u8(1))
    call(b"dir2", "dir_state_assert", u8(0))
    call(b"dir3", "dir_remove_image", s("a"), s("b"))
    i = b"rbd_id.img"
    call(i, "get_id")
    call(i, "set_id", s("abc"))
    raw(i, create=True)
    call(i, "get_id")
    call(i, "set_id", s("a.c"))
    call(i, "set_id", s("abc"))
    call(i, "set_id", s("abd"))
    call(i, "get_id")
    raw(i, data=b"\x09\0\0\0abc")
    call(i, "get_id")


def metadata():
    o = b"meta"
    call(o, "metadata_list", s(""), u64(0))
    call(o, "metadata_set", m([(s("key"), s("value")), (s("other"), s(""))]))
    call(o, "metadata_set", m([]))
    call(b"meta2", "metadata_set", m([]), cut=False)
    call(o, "metadata_get", s("key"))
    call(o, "metadata_get", s("nokey"))
    call(o, "metadata_remove", s("nokey"))
    call(b"nosuch", "metadata_remove", s("nokey"))
    call(o, "metadata_set", m([(s("k%03d" % i), s("v" * i)) for i in range(140)]), cut=False)
    for start, n in (("", 0), ("", 1000), ("k010", 5), ("zz", 5), ("", 64), ("", 65)):
        call(o, "metadata_list", s(start), u64(n))
    call(o, "metadata_remove", s("key"))
    call(o, "metadata_list", s("k130"), u64(100))


def trash():
    o = b"trash"
    def entry(v=2, state=0): return ver(v, 1, u8(0), s("name"), t(5, 6), t(7, 8), *([u8(state)] if v > 1 else []))
    call(o, "trash_list", s(""), u64(10))
    call(o, "trash_add", s("id1"), entry())
    call(o, "trash_add", s("id1"), entry())
    call(o, "trash_add", s("i-d"), entry())
    call(o, "trash_add", s("id2"), entry(1))
    call(o, "trash_get", s("id1"))
    call(o, "trash_get", s("nope"))
    call(o, "trash_state_set", s("id1"), u8(1), u8(0))
    call(o, "trash_state_set", s("id1"), u8(1), u8(0))
    call(o, "trash_state_set", s("id1"), u8(2), u8(0))
    call(o, "trash_state_set", s("nope"), u8(2), u8(0))
    call(o, "trash_state_set", s("id2"), u8(3), u8(0))
    for i in range(100):
        call(o, "trash_add", s("z%03d" % i), entry(), cut=False)
    for start, n in (("", 1000), ("", 0), ("id1", 2), ("z050", 70)):
        call(o, "trash_list", s(start), u64(n))
    call(o, "trash_remove", s("nope"))
    call(o, "trash_remove", s("id1"))
    call(b"trash2", "trash_remove", s("id1"))


def namespaces():
    o = b"nspace"
    call(o, "namespace_list", s(""), u64(10))
    call(o, "namespace_remove", s("a"))
    for n in ("a", "b", "a"):
        call(o, "namespace_add", s(n))
    for i in range(70):
        call(o, "namespace_add", s("c%02d" % i), cut=False)
    for start, n in (("", 1000), ("", 0), ("a", 2)):
        call(o, "namespace_list", s(start), u64(n))
    call(o, "namespace_remove", s("a"))
    call(o, "namespace_remove", s("a"))


def bits(states, crcs=True):
    data = bytearray((len(states) + 3) // 4)
    for i, v in enumerate(states):
        data[i // 4] |= v << (6 - 2 * (i % 4))
    header = ver(1, 1, u64(len(states)))
    footer = b""
    if crcs:
        blocks = [bytes(data[i:i + 4096]) for i in range(0, len(data), 4096)]
        footer = u32(crc(header)) + u32(len(blocks)) + b"".join(u32(crc(b)) for b in blocks)
    return s(header) + bytes(data) + s(footer)


TABLE = []
for n in range(256):
    for _ in range(8):
        n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
    TABLE.append(n)


def crc(data):
    value = 0
    for b in data:
        value = TABLE[(value ^ b) & 255] ^ value >> 8
    return value


def object_maps():
    o = b"omap"
    call(o, "object_map_load")
    call(o, "object_map_snap_add")
    call(o, "object_map_update", u64(0), u64(1), u8(1), u8(0))
    call(o, "object_map_resize", u64(10), u8(0))
    call(o, "object_map_load")
    call(o, "object_map_resize", u64(256000001), u8(0))
    call(o, "object_map_update", u64(0), u64(5), u8(1), u8(0))
    call(o, "object_map_update", u64(3), u64(4), u8(2), u8(1), u8(1))
    call(o, "object_map_update", u64(3), u64(4), u8(2), u8(1), u8(3))
    call(o, "object_map_update", u64(4), u64(11), u8(2), u8(0))
    call(o, "object_map_update", u64(4), u64(4), u8(2), u8(0))
    call(o, "object_map_update", u64(4), u64(6), u8(7), u8(0))
    call(o, "object_map_snap_add")
    call(o, "object_map_snap_add")
    call(o, "object_map_update", u64(0), u64(2), u8(0), u8(1), u8(1))
    call(o, "object_map_resize", u64(5), u8(0))
    call(o, "object_map_resize", u64(5), u8(3))
    call(o, "object_map_resize", u64(7), u8(3))
    call(o, "object_map_load")
    call(o, "object_map_save", bits([1, 3, 3, 3, 1, 2, 0, 3]))
    call(o, "object_map_snap_remove", bits([1, 3, 1, 3, 0]))
    call(o, "object_map_save", bits([1, 3, 3], crcs=False), cut=False)
    call(o, "object_map_save", bits([]), cut=False)
    call(o, "object_map_load")
    call(o, "object_map_save", bits([i % 4 for i in range(40000)]), cut=False)
    call(o, "object_map_load")
    call(o, "object_map_update", u64(16380), u64(16390), u8(1), u8(0), cut=False)
    call(o, "object_map_update", u64(39990), u64(40000), u8(1), u8(0), cut=False)
    call(o, "object_map_update", u64(16384), u64(32768), u8(0), u8(1), u8(1), cut=False)
    call(o, "object_map_resize", u64(50000), u8(1))
    call(o, "object_map_snap_add")
    bad = bytearray(bits([1] * 20000))
    bad[18 + 4200] ^= 1
    call(o, "object_map_save", bytes(bad), cut=False)
    raw(o, data=bytes(bad))
    call(o, "object_map_load")
    call(o, "object_map_update", u64(0), u64(5), u8(0), u8(0), cut=False)
    call(o, "object_map_update", u64(17000), u64(17005), u8(0), u8(0), cut=False)
    call(o, "object_map_resize", u64(3), u8(0))
    raw(o, data=b"short")
    call(o, "object_map_load")
    call(o, "object_map_update", u64(0), u64(5), u8(0), u8(0), cut=False)
    raw(o, create=True)
    call(o, "object_map_load")
    call(o, "object_map_resize", u64(9), u8(1))


def data_objects():
    call(b"cu1", "copyup", b"parent data", cut=False)
    call(b"cu1", "copyup", b"again", cut=False)
    call(b"cu2", "copyup", cut=False)
    def sparse(pairs, data): return m([(u64(a), u64(b)) for a, b in pairs]) + s(data)
    call(b"sc1", "sparse_copyup", sparse([(0, 3), (10, 2)], b"abcde"))
    call(b"sc1", "sparse_copyup", sparse([(0, 3)], b"xyz"))
    call(b"sc2", "sparse_copyup", sparse([], b""))
    call(b"sc3", "sparse_copyup", sparse([(0, 9)], b"abc"))
    call(b"sp0", "sparsify", u64(16), u8(1))
    z = bytes(16)
    for n, (data, remove) in enumerate(((z + b"a" * 16 + z + z + b"b" * 20 + bytes(3), 0), (z * 4, 0), (z * 4, 1), (b"a" * 40, 0), (b"a" + bytes(31) + b"b", 1), (b"", 1), (b"", 0))):
        o = b"sp%d" % (n + 1)
        raw(o, data=data)
        call(o, "sparsify", u64(16), u8(remove))
    o = b"snapc"
    call(o, "assert_snapc_seq", u64(1), u8(0))
    call(o, "assert_snapc_seq", u64(1), u8(1))
    snaps = (C.c_uint64 * 1)(7)
    R.rados_ioctx_selfmanaged_snap_set_write_ctx(io, C.c_uint64(7), snaps, 1)
    raw(o, data=b"x")
    steps[-1]["snap_set"] = [7, []]
    R.rados_ioctx_selfmanaged_snap_set_write_ctx(io, C.c_uint64(0), None, 0)
    for seq in (6, 7, 8):
        for state in (0, 1, 2):
            call(o, "assert_snapc_seq", u64(seq), u8(state))


def old_format():
    o = b"v1.rbd"
    call(o, "snap_list")
    call(o, "snap_add", s("a"), u64(3))
    call(o, "migration_get")
    text = b"<<< Rados Block Device Image >>>\n".ljust(40, b"\0")
    raw(o, data=text + b"rb.0.1.2".ljust(24, b"\0") + b"RBD\0" + b"001.005\0" + bytes([22, 0, 0, 0]) + u64(8 << 20) + u64(0) + u32(0) + u32(0) + u64(0))
    call(o, "snap_list")
    for n, i in (("first", 3), ("second", 5), ("third", 6), ("second", 8), ("late", 4)):
        call(o, "snap_add", s(n), u64(i))
    call(o, "snap_list")
    call(o, "snap_rename", u64(5), s("zweite"))
    call(o, "snap_rename", u64(5), s("first"))
    call(o, "snap_rename", u64(77), s("x"))
    call(o, "snapshot_set_limit", u64(2))
    call(o, "snapshot_set_limit", u64(3))
    call(o, "snap_add", s("over"), u64(9))
    call(o, "snap_remove", s("nope"))
    call(o, "snap_remove", s("zweite"))
    call(o, "snap_remove", s("first"))
    call(o, "snap_remove", s("third"))
    call(o, "snap_list")
    call(o, "migration_get")
    call(o, "migration_remove")
    call(o, "migration_set", moving(2))
    call(o, "migration_set", moving(1))
    call(o, "migration_set", moving(1))
    call(o, "migration_get")
    call(o, "migration_set_state", u8(2), s("well"))
    call(o, "migration_remove")


def moving(role, source=""):
    return ver(3, 3 if source else 1, u8(role), u64(2), s("ns"), s("name"), s("id"), m([(u64(3), u64(4))]), u64(1 << 20), u8(1), u8(0), u8(1), s(""), u8(1), s(source))


def migration():
    h = b"mig"
    call(h, "create", u64(8 << 20), u8(22), u64(0x3d), s("rbd_data.m"), cut=False)
    call(h, "migration_get")
    call(h, "migration_set_state", u8(2), s("well"))
    call(h, "migration_set", moving(1))
    call(h, "migration_set", moving(1))
    call(h, "migration_get")
    call(h, "migration_set_state", u8(2), s("well"))
    call(h, "migration_get")
    call(h, "migration_remove")
    call(h, "migration_remove")
    call(h, "migration_get")
    d = b"migdst"
    call(d, "create", u64(8 << 20), u8(22), u64(0x3d | 1 << 9), s("rbd_data.n"), cut=False)
    call(d, "migration_set", moving(1))
    call(d, "migration_set", moving(2, '{"type":"raw"}'))
    call(d, "migration_get")
    raw(b"other", data=b"something else that is long enough to be read")
    call(b"other", "migration_get")
    call(b"other", "migration_set", moving(1))


def groups():
    d = b"gdir"
    call(d, "group_dir_list", s(""), u64(10))
    call(d, "group_dir_add", s("g1"), s("gid1"))
    call(d, "group_dir_add", s("g1"), s("gid2"))
    call(d, "group_dir_add", s("g2"), s("gid1"))
    call(d, "group_dir_add", s(""), s("gid1"))
    call(d, "group_dir_rename", s("g1"), s("g9"), s("gid1"))
    call(d, "group_dir_rename", s("g1"), s("g9"), s("gid1"))
    call(d, "group_dir_list", s(""), u64(10))
    call(d, "group_dir_remove", s("g9"), s("nope"))
    call(d, "group_dir_remove", s("nope"), s("gid1"))
    call(d, "group_dir_remove", s("g9"), s("gid1"))
    call(b"gdir2", "group_dir_remove", s("g9"), s("gid1"))
    g = b"group"
    def image(id, pool): return ver(1, 1, s(id), u64(pool))
    call(g, "group_image_list", image("", -1), u64(10))
    call(g, "group_image_set", ver(1, 1, image("img1", 2), u8(1)))
    call(g, "group_image_set", ver(1, 1, image("img1", 2), u8(0)))
    for i in range(80):
        call(g, "group_image_set", ver(1, 1, image("i%02d" % i, 3), u8(0)), cut=False)
    for start, n in ((image("", -1), 1000), (image("", -1), 0), (image("i05", 3), 4)):
        call(g, "group_image_list", start, u64(n))
    call(g, "group_image_remove", image("img1", 2))
    call(g, "group_image_remove", image("img1", 2))
    h = b"member"
    call(h, "create", u64(8 << 20), u8(22), u64(0x3d), s("rbd_data.g"), cut=False)
    def group(pool, id): return ver(1, 1, u64(pool), s(id))
    call(h, "image_group_get")
    call(h, "image_group_remove", group(2, "gid"))
    call(h, "image_group_add", group(2, "gid"))
    call(h, "image_group_add", group(2, "gid"))
    call(h, "image_group_add", group(2, "other"))
    call(h, "image_group_get")
    call(h, "image_group_remove", group(3, "gid"))
    call(h, "image_group_remove", group(2, "gid"))
    call(h, "image_group_get")
    call(b"bare", "image_group_add", group(2, "gid"))
    def gsnap(id, name, state, n=1): return ver(1, 1, s(id), s(name), u8(state), u32(n), *([ver(1, 1, u64(2), s("img"), u64(4))] * n))
    call(g, "group_snap_list", gsnap("", "", 0, 0), u64(10))
    call(g, "group_snap_list_order", s(""), u64(10))
    call(g, "group_snap_set", gsnap("s1", "one", 1))
    call(g, "group_snap_set", gsnap("s2", "two", 0))
    call(g, "group_snap_set", gsnap("s2", "two", 0))
    call(g, "group_snap_set", gsnap("s2", "two", 1, 2))
    call(g, "group_snap_set", gsnap("s3", "two", 0))
    call(g, "group_snap_set", gsnap("s3", "", 0))
    call(g, "group_snap_set", gsnap("", "x", 0))
    call(g, "group_snap_set", gsnap("s3", "three", 0, 0))
    call(g, "group_snap_get_by_id", s("s2"))
    call(g, "group_snap_get_by_id", s("nope"))
    call(g, "group_snap_list", gsnap("", "", 0, 0), u64(10))
    call(g, "group_snap_list", gsnap("s1", "", 0, 0), u64(1))
    call(g, "group_snap_list_order", s(""), u64(10))
    call(g, "group_snap_list_order", s("s2"), u64(10))
    call(g, "group_snap_remove", s("s2"))
    call(g, "group_snap_remove", s("s2"))
    call(b"group2", "group_snap_remove", s("s2"))


def mirroring():
    o = b"rbd_mirroring"
    def peer(uuid, site, client, way, mu): return ver(2, 1, s(uuid), s(site), s(client), u64(-1), u8(way), s(mu), t(0))
    call(o, "mirror_mode_get")
    call(o, "mirror_uuid_get")
    call(o, "mirror_peer_list")
    call(o, "mirror_mode_set", u32(1))
    call(o, "mirror_mode_set", u32(0))
    call(o, "mirror_peer_add", peer("p1", "siteB", "client.a", 2, ""))
    call(o, "mirror_uuid_set", s(""))
    call(o, "mirror_uuid_set", s("own-uuid"))
    call(o, "mirror_uuid_get")
    call(o, "mirror_mode_get")
    call(o, "mirror_mode_set", u32(9))
    call(o, "mirror_remote_namespace_set", s("ns"))
    call(o, "mirror_remote_namespace_get")
    call(o, "mirror_mode_set", u32(1))
    call(o, "mirror_mode_get")
    call(o, "mirror_uuid_set", s("x"))
    call(o, "mirror_remote_namespace_get")
    call(o, "mirror_remote_namespace_set", s("ns"))
    call(o, "mirror_peer_add", peer("p1", "siteB", "client.a", 2, ""))
    call(o, "mirror_peer_add", peer("p1", "siteC", "client.a", 2, ""))
    call(o, "mirror_peer_add", peer("p2", "siteB", "client.a", 2, ""))
    call(o, "mirror_peer_add", peer("p2", "siteC", "", 2, ""))
    call(o, "mirror_peer_add", peer("p2", "siteC", "", 1, ""))
    call(o, "mirror_peer_add", peer("own-uuid", "siteC", "c", 0, ""))
    call(o, "mirror_peer_add", peer("p2", "siteC", "c", 0, "mu2"))
    call(o, "mirror_peer_add", peer("p3", "siteD", "c", 0, "mu2"))
    call(o, "mirror_peer_list")
    call(o, "mirror_peer_ping", s("siteB"), s("muB"), u8(1))
    call(o, "mirror_peer_ping", s("siteC"), s("mu2"), u8(1))
    call(o, "mirror_peer_ping", s("siteC2"), s("mu2"), u8(1))
    call(o, "mirror_peer_ping", s("siteB"), s("mu2"), u8(1))
    call(o, "mirror_peer_ping", s("siteB"), s("mu9"), u8(1))
    call(o, "mirror_peer_ping", s("siteN"), s("muN"), u8(1))
    call(o, "mirror_peer_ping", s("siteN"), s("muN"), u8(0))
    call(o, "mirror_peer_ping", s(""), s("muN"), u8(1))
    call(o, "mirror_peer_set_client", s("p1"), s("client.z"))
    call(o, "mirror_peer_set_client", s("nope"), s("client.z"))
    call(o, "mirror_peer_set_cluster", s("p1"), s("siteZ"))
    call(o, "mirror_peer_set_cluster", s("p2"), s("siteZ"))
    call(o, "mirror_peer_set_cluster", s("nope"), s("siteY"))
    call(o, "mirror_peer_set_direction", s("p1"), u8(0))
    call(o, "mirror_peer_set_direction", s("nope"), u8(0))
    call(o, "mirror_mode_set", u32(0))
    call(o, "mirror_peer_remove", s("nope"))
    call(o, "mirror_peer_remove", s("p2"))
    def image(g, state, mode=1): return ver(2, 1, s(g), u8(state), u8(mode))
    call(o, "mirror_image_list", s(""), u64(10))
    call(o, "mirror_image_set", s("id1"), image("g1", 0))
    call(o, "mirror_image_set", s("id1"), image("g1", 1))
    call(o, "mirror_image_set", s("id1"), image("g9", 1))
    call(o, "mirror_image_set", s("id2"), image("g1", 1))
    call(o, "mirror_image_set", s("id2"), ver(1, 1, s("g2"), u8(1)))
    call(o, "mirror_image_set", s("id3"), image("g3", 1))
    call(o, "mirror_image_list", s(""), u64(10))
    call(o, "mirror_image_list", s("id1"), u64(1))
    call(o, "mirror_image_get", s("id1"))
    call(o, "mirror_image_get", s("nope"))
    call(o, "mirror_image_get_image_id", s("g2"))
    call(o, "mirror_image_get_image_id", s("nope"))
    def site(mu, state, text): return ver(2, 2, s(mu), u8(state), s(text), t(1), u8(1)) if mu else ver(1, 1, u8(state), s(text), t(1), u8(1))
    call(o, "mirror_image_status_get", s("g1"))
    call(o, "mirror_image_status_set", s("g1"), site("", 4, "replaying"))
    call(o, "mirror_image_status_set", s("g1"), site("muB", 6, "stopped"))
    call(o, "mirror_image_status_set", s("g2"), site("muB", 1, "broken"))
    call(o, "mirror_image_status_set", s("nope"), site("", 4, "replaying"))
    tx = u32(1) + peer("p1", "s", "c", 1, "muB")
    both = u32(2) + peer("p1", "s", "c", 2, "muB") + peer("p2", "s", "c", 0, "")
    def ask():
        call(o, "mirror_image_status_get", s("g1"))
        call(o, "mirror_image_status_get", s("g2"))
        call(o, "mirror_image_status_list", s(""), u64(10))
        call(o, "mirror_image_status_list", s("id1"), u64(1))
        for which in (b"", u32(0), tx, both):
            call(o, "mirror_image_status_get_summary", which)
        call(o, "mirror_image_instance_get", s("g1"))
        call(o, "mirror_image_instance_get", s("g3"))
        call(o, "mirror_image_instance_list", s(""), u64(10))
    ask()
    handle = C.c_uint64()
    cb = C.CFUNCTYPE(None, P, C.c_uint64, C.c_uint64, C.c_uint64, P, C.c_size_t)(lambda *a: None)
    check(R.rados_watch2(io, o, C.byref(handle), cb, None, None), "watch")
    note({"object": o.decode(), "watched": True}, o)
    ask()
    call(o, "mirror_image_status_remove_down")
    check(R.rados_unwatch2(io, handle), "unwatch")
    note({"object": o.decode(), "watched": False}, o)
    call(o, "mirror_image_status_remove", s("g2"))
    call(o, "mirror_image_remove", s("id1"))
    call(o, "mirror_image_set", s("id1"), image("g1", 0), cut=False)
    call(o, "mirror_image_remove", s("id1"))
    call(o, "mirror_image_remove", s("id1"))
    call(o, "mirror_image_status_remove_down")
    l = b"rbd_mirror_leader"
    call(l, "mirror_instances_list")
    call(l, "mirror_instances_remove", s("i1"))
    call(l, "mirror_instances_add", s("i1"))
    call(l, "mirror_instances_add", s("i2"))
    call(l, "mirror_instances_list")
    call(l, "mirror_instances_remove", s("i1"))
    def mapping(i): return ver(1, 1, s(i), t(3, 4), s("data"))
    call(l, "mirror_image_map_update", s("g1"), mapping("i1"))
    call(l, "mirror_image_map_update", s("g2"), mapping("i2"))
    call(l, "mirror_image_map_list", s(""), u64(10))
    call(l, "mirror_image_map_list", s("g1"), u64(1))
    call(l, "mirror_image_map_remove", s("g1"))
    call(l, "mirror_image_map_remove", s("g1"))
    call(b"leader2", "mirror_image_map_remove", s("g1"))


def journals():
    def do(o, method, *data, **kw): return call(o, method, *data, cls="journal", **kw)
    def at(*positions): return ver(1, 1, u32(len(positions)), *[ver(1, 1, *map(u64, p)) for p in positions])
    o = b"journal"
    do(o, "get_order")
    do(o, "client_register", s("a"), s("data"))
    do(o, "create", u8(24), u8(4), u64(-1))
    do(o, "create", u8(24), u8(4), u64(-1))
    for method in ("get_order", "get_splay_width", "get_pool_id", "get_minimum_set", "get_active_set", "get_next_tag_tid"):
        do(o, method)
        do(b"bare", method)
    for which, n in (("active", 3), ("active", 3), ("active", 2), ("minimum", 4), ("minimum", 2), ("minimum", 2), ("minimum", 1), ("active", 1)):
        do(o, "set_%s_set" % which, u64(n))
    for i in ("a", "b", "a"):
        do(o, "client_register", s(i), s("data of " + i))
    do(o, "get_client", s("a"))
    do(o, "get_client", s("nope"))
    for tid, cls in ((0, -1), (0, -1), (2, 0), (1, 5), (1, 0), (2, -1), (3, 0), (4, 1), (5, 0)):
        do(o, "tag_create", u64(tid), u64(cls), s("tag"))
    do(o, "get_tag", u64(2))
    do(o, "get_tag", u64(77))
    do(o, "get_next_tag_tid")
    def tags(): 
        for after, n, client, cls in ((0, 10, "a", None), (0, 2, "a", None), (0, 10, "b", 0), (2, 10, "b", None), (0, 0, "a", None), (0, 10, "nope", None)):
            do(o, "tag_list", u64(after), u64(n), s(client), *([u8(0)] if cls is None else [u8(1), u64(cls)]))
    tags()
    do(o, "client_commit", s("a"), at((1, 3, 7), (0, 2, 9)))
    do(o, "client_commit", s("a"), at((1, 3, 7), (0, 2, 9)))
    do(o, "client_commit", s("nope"), at((1, 3, 7)))
    do(o, "client_commit", s("a"), at(*[(i, i, i) for i in range(5)]))
    tags()
    do(o, "tag_create", u64(6), u64(0), s("tag"))
    do(o, "client_register", s("c"), s(""))
    do(o, "client_commit", s("b"), at((5, 4, 1)))
    do(o, "client_commit", s("c"), at((5, 4, 0), (4, 3, 1)))
    do(o, "client_register", s("d"), s(""))
    do(o, "client_update_data", s("b"), s("new data"))
    do(o, "client_update_data", s("nope"), s("new data"))
    do(o, "client_update_state", s("a"), u8(1))
    do(o, "client_update_state", s("nope"), u8(1))
    for after, n in (("", 10), ("", 2), ("b", 10), ("", 0)):
        do(o, "client_list", s(after), u64(n))
    do(o, "tag_create", u64(7), u64(1), s("tag"))
    tags()
    do(o, "client_unregister", s("d"))
    do(o, "client_unregister", s("d"))
    do(o, "client_unregister", s("c"))
    do(o, "client_unregister", s("b"))
    do(o, "client_unregister", s("a"))
    raw(o, omap={b"client_bad": b"x", b"tag_0000000000000009": b"y"})
    do(o, "get_client", s("bad"))
    do(o, "get_tag", u64(9))
    do(o, "client_list", s(""), u64(9))
    e = b"entries"
    do(e, "guard_append", u64(10))
    do(e, "append", u64(0), s("x"))
    do(e, "append", u64(10), s("12345"))
    do(e, "append", u64(10), s("67890"))
    do(e, "append", u64(10), s("x"))
    do(e, "guard_append", u64(10))
    do(e, "guard_append", u64(11))


def locks():
    def do(o, method, *data, **kw): return call(o, method, *data, cls="lock", **kw)
    def lock(name, kind, cookie, tag="", text="", lasts=0, flags=0):
        return ver(1, 1, s(name), u8(kind), s(cookie), s(tag), s(text), t(lasts), u8(flags))
    me = u8(8) + u64(ORIGIN[0])
    o = b"locked"
    do(o, "get_info", ver(1, 1, s("l")))
    do(o, "list_locks")
    do(o, "unlock", ver(1, 1, s("l"), s("c")))
    do(o, "lock", lock("", 1, "c"))
    do(o, "lock", lock("l", 0, "c"))
    do(o, "lock", lock("l", 9, "c"))
    do(o, "lock", lock("l", 1, "c", flags=3))
    do(o, "lock", lock("l", 1, "c", flags=2))
    do(o, "lock", lock("l", 1, "c", "tag", "text"))
    do(o, "lock", lock("l", 1, "c", "tag", "text"))
    do(o, "lock", lock("l", 1, "c", "tag", "new text", flags=1))
    do(o, "lock", lock("l", 1, "c", "tag", "newer text", flags=2))
    do(o, "lock", lock("l", 1, "d", "tag"))
    do(o, "lock", lock("l", 2, "d", "tag"))
    do(o, "lock", lock("l", 1, "c", "other"))
    do(o, "get_info", ver(1, 1, s("l")))
    do(o, "get_info", ver(1, 1, s("nope")))
    do(o, "list_locks")
    for kind, cookie, tag in ((1, "c", "tag"), (2, "c", "tag"), (1, "x", "tag"), (1, "c", "x"), (0, "c", "tag")):
        do(o, "assert_locked", ver(1, 1, s("l"), u8(kind), s(cookie), s(tag)))
        do(o, "set_cookie", ver(1, 1, s("l"), u8(kind), s(cookie), s(tag), s("c")))
    do(o, "assert_locked", ver(1, 1, s(""), u8(1), s("c"), s("tag")))
    do(o, "assert_locked", ver(1, 1, s("nope"), u8(1), s("c"), s("tag")))
    do(o, "set_cookie", ver(1, 1, s("l"), u8(1), s("c"), s("tag"), s("c2")))
    do(o, "get_info", ver(1, 1, s("l")))
    do(o, "unlock", ver(1, 1, s("l"), s("c")))
    do(o, "break_lock", ver(1, 1, s("l"), u8(8) + u64(1), s("c2")))
    do(o, "break_lock", ver(1, 1, s("l"), me, s("c2")))
    do(o, "get_info", ver(1, 1, s("l")))
    for cookie in ("b", "a"):
        do(o, "lock", lock("sh", 2, cookie, "t"))
    do(o, "lock", lock("sh", 1, "b", "t", flags=1))
    do(o, "lock", lock("sh", 2, "z", "u"))
    do(o, "set_cookie", ver(1, 1, s("sh"), u8(2), s("a"), s("t"), s("b")))
    do(o, "get_info", ver(1, 1, s("sh")))
    do(o, "list_locks")
    do(o, "unlock", ver(1, 1, s("sh"), s("a")))
    do(o, "unlock", ver(1, 1, s("sh"), s("b")))
    do(o, "lock", lock("sh", 1, "b", "x"))
    do(o, "lock", lock("exp", 1, "b", lasts=1000), cut=False, lasts=1000)
    e = b"ephemeral"
    do(e, "lock", lock("e", 3, "c"))
    do(e, "lock", lock("e", 3, "d"))
    do(e, "unlock", ver(1, 1, s("e"), s("nope")))
    do(e, "unlock", ver(1, 1, s("e"), s("c")))
    e = b"expired"
    do(e, "lock", lock("e", 3, "c", lasts=1), cut=False, lasts=1)
    do(e, "lock", lock("x", 1, "c"), cut=False)
    time.sleep(2.1)
    later = int(time.time())
    for method in ("get_info", "list_locks", "assert_locked"):
        do(e, method, ver(1, 1, s("e"), *([u8(3), s("c"), s("")] if method == "assert_locked" else [])), cut=False)
        steps[-1]["now"] = [later, 0]
    do(e, "unlock", ver(1, 1, s("e"), s("c")), cut=False)
    steps[-1]["now"] = [later, 0]
    do(e, "lock", lock("e", 1, "new"), cut=False)
    steps[-1]["now"] = [later, 0]
    do(e, "list_locks")


def hello():
    def do(o, method, data=b""): return call(o, method, data, cls="hello", cut=False)
    o = b"greet"
    do(o, "say_hello")
    do(o, "replay")
    do(o, "turn_it_to_11", b"x")
    do(o, "record_hello", b"x" * 101)
    do(o, "record_hello", b"test")
    do(o, "record_hello", b"test")
    do(o, "replay")
    do(o, "say_hello")
    do(o, "say_hello", b"me")
    do(o, "say_hello", b"x" * 101)
    do(o, "turn_it_to_11")
    do(o, "replay")
    do(o, "write_return_data")
    do(o, "write_return_data", b"x")
    do(o, "writes_dont_return_data")
    do(o, "nosuchmethod")


for part in (headers, snapshots, parents, children, directories, metadata, trash, namespaces, object_maps, data_objects, old_format, migration, groups, mirroring, journals, locks, hello):
    part()
R.rados_ioctx_destroy(io)
R.rados_shutdown(cluster)
print(json.dumps({"version": VERSION, "origin": ORIGIN}).rstrip("}") + ', "steps": [')
print(",\n".join(json.dumps(step) for step in steps))
print("]}")
