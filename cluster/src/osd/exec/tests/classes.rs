//! Calls of methods.

use super::rig::{Rig, payload};
use crate::objecter::ObjectOp;
use crate::objecter::msg::{NOSNAP, OsdFlags};
use crate::osd::cls::{Context, Errno, Method, Result};

fn put(object: &mut dyn Context, input: &[u8]) -> Result<Vec<u8>> {
    let old = object.read(0, 0)?;
    object.write_full(input)?;
    object.set_attr("a", b"1")?;
    object.omap_set(b"k", input)?;
    if input == b"bad" {
        return Err(Errno(-libc::EDOM));
    }
    object.set_code(input.len() as i32);
    Ok(old)
}

fn look(object: &mut dyn Context, _: &[u8]) -> Result<Vec<u8>> {
    let (size, _) = object.stat()?;
    let missing = object.omap_get(b"absent");
    assert_eq!(missing, Err(Errno(-libc::ENOENT)));
    Ok(vec![size as u8])
}

const METHODS: [Method; 5] = [
    method("put", true, true, put),
    method("look", true, false, look),
    method("sneaky_put", true, false, put),
    method("sneaky_look", false, true, look),
    method("stat", false, true, |object, _| {
        object.stat().map(|s| vec![s.0 as u8])
    }),
];

type Call = fn(&mut dyn Context, &[u8]) -> Result<Vec<u8>>;

const fn method(name: &'static str, reads: bool, writes: bool, call: Call) -> Method {
    Method {
        class: "test",
        name,
        reads,
        writes,
        call,
    }
}

fn rig() -> Rig {
    let mut rig = Rig::new();
    rig.method = |class, name| {
        static ALL: [Method; 5] = METHODS;
        ALL.iter().find(|m| m.class == class && m.name == name)
    };
    rig
}

fn call(method: &str, input: &[u8]) -> ObjectOp {
    ObjectOp::new().call("test", method, payload(input))
}

#[test]
fn a_method_works_on_the_object_of_the_request() {
    let mut rig = rig();
    rig.flags = OsdFlags::RETURNVEC;
    let answer = rig.done(call("put", b"abc"));
    assert_eq!((answer.result, answer.output()), (3, &b""[..]));
    let answer = rig.done(call("put", b"de"));
    assert_eq!((answer.result, answer.output()), (2, &b"abc"[..]));
    let answer = rig.done(call("look", b""));
    assert_eq!(answer.output(), [2]);
    assert_eq!(rig.done(ObjectOp::new().getxattr("a")).output(), b"1");
    // An error undoes all.
    let answer = rig.ask(call("put", b"bad"));
    assert_eq!((answer.result, answer.changed), (-libc::EDOM, false));
    assert_eq!(rig.bytes(NOSNAP).unwrap(), b"de");
}

#[test]
fn methods_that_are_not_there() {
    let mut rig = rig();
    rig.done(ObjectOp::new().create(true));
    assert_eq!(rig.ask(call("absent", b"")).result, -libc::EOPNOTSUPP);
    let other = ObjectOp::new().call("absent", "put", payload(b""));
    assert_eq!(rig.ask(other).result, -libc::EOPNOTSUPP);
}

#[test]
fn a_reading_method_needs_the_object() {
    let mut rig = rig();
    assert_eq!(rig.ask(call("look", b"")).result, -libc::ENOENT);
    // A writing one finds out for itself.
    assert_eq!(rig.ask(call("stat", b"")).result, -libc::ENOENT);
}

#[test]
fn a_method_does_no_more_than_it_says() {
    let mut rig = rig();
    rig.done(ObjectOp::new().write(0, payload(b"abc")));
    let answer = rig.ask(call("sneaky_put", b"x"));
    assert_eq!((answer.result, answer.changed), (-libc::EIO, false));
    assert_eq!(rig.ask(call("sneaky_look", b"x")).result, -libc::EIO);
    // Size and time are not a matter of reading.
    assert_eq!(rig.done(call("stat", b"")).result, 0);
}
