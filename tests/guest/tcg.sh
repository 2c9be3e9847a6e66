# shellcheck shell=bash
# QEMU's software emulation of a PC with a stock Debian kernel. To be sourced by `run`.

# What it takes to mount the host's file tree; all else is loaded from there.
first_modules=(virtio_pci 9pnet_virtio 9p overlay)

# prepare: sets $kernel, $initrd and $modules
prepare() {
  need qemu-system-x86_64 qemu-system-x86 busybox busybox-static cpio cpio depmod kmod xz xz-utils \
    setpriv util-linux setsid util-linux ip iproute2
  local place
  exec {lock}>"$cache/tcg.lock"
  flock -n $lock || say "waiting for another download" && flock $lock
  place=$(printf '%s\n' "$cache"/linux-6.12.*/ | sort -V | tail -n 1)
  [ -d "$place" ] || { absent "the kernel of the emulated guest" && get; } || exit 125
  place=$(printf '%s\n' "$cache"/linux-6.12.*/ | sort -V | tail -n 1)
  place=${place%/}
  kernel=$place/vmlinuz modules=$(echo "$place"/lib/modules/*) initrd=$place/initrd
  [ "$initrd" -nt "$here/tcg-init" ] || make_initrd "$place" || exit 125
  exec {lock}>&-
}

# Downloads a kernel and unpacks it beside its place.
get() {
  local work=$cache/tcg.partial package deb version
  rm -rf "$work"
  suite "$work/apt" bookworm-backports
  package=$(newest '^linux-image-6\.12\.[0-9.]+\+[a-z0-9]+-amd64-unsigned$')
  [ -n "$package" ] || die "bookworm-backports has no linux-image-6.12"
  say "downloading $package"
  deb=$(download "$package") || exit 125
  dpkg-deb -x "$deb" "$work/tree" || die "cannot unpack $package"
  version=${package#linux-image-} version=${version%-unsigned}
  mv "$work/tree/boot/vmlinuz-$version" "$work/tree/vmlinuz" && depmod -b "$work/tree" "$version" ||
    die "$package has no kernel where one is expected"
  rm -rf "$work/tree/boot" "$work/tree/usr"
  mv "$work/tree" "$cache/linux-$version"
  rm -rf "$work"
}

# make_initrd PLACE: a file system for the start, with the first modules in their order
make_initrd() {
  local tree=$1/initrd.partial file number=100
  rm -rf "$tree"
  mkdir -p "$tree"/{bin,dev,modules,proc,root}
  cp "$(command -v busybox)" "$tree/bin/busybox"
  ln -s busybox "$tree/bin/sh"
  cp "$here/tcg-init" "$tree/init"
  for file in $(modprobe -d "$1" -S "${modules##*/}" --show-depends -a "${first_modules[@]}" |
    awk '$1 == "insmod" && !seen[$2]++ { print $2 }'); do
    case $file in
      *.xz) xz -dc "$file" ;;
      *) cat "$file" ;;
    esac >"$tree/modules/$number-$(basename "$file" .xz)"
    number=$((number + 1))
  done
  [ $number -gt 100 ] || die "no modules in $modules"
  (cd "$tree" && find . | cpio --quiet -o -H newc | gzip -1) >"$initrd.new" &&
    mv "$initrd.new" "$initrd" || die "cannot make $initrd"
  rm -rf "$tree"
}

# start JOB: boots the kernel, sets $guest to QEMU's pid
start() {
  printf 'out=/dev/ttyS1 err=/dev/ttyS2\n' >>"$1/settings"
  local share tag=0 trees=()
  tree() { trees+=(-virtfs "local,path=$1,mount_tag=$2,security_model=none,multidevs=remap${3:-}"); }
  tree / root ,readonly=on
  tree "$modules" modules ,readonly=on
  for share in "$1" "${shares[@]}"; do
    tree "$share" "share$tag"
    tag=$((tag + 1))
  done
  apart qemu-system-x86_64 -accel tcg,thread=multi,tb-size=512 -cpu max -m "$mem" -smp "${cpus:-2}" \
    -display none -nodefaults -no-reboot "${trees[@]}" \
    -serial "file:$1/console" -serial file:/dev/fd/4 -serial file:/dev/fd/5 \
    -kernel "$kernel" -initrd "$initrd" \
    -append "console=ttyS0 panic=-1 quiet mitigations=off $append -- $1" \
    </dev/null 4> >(cat) 5> >(cat >&2) >>"$1/host" 2>&1 &
  guest=$!
}
