# shellcheck shell=bash
# User-Mode Linux: the kernel as a process of the host. To be sourced by `run`.

# Of the source, what this build cannot need: most of it, and unpacking is a good part of the time.
left_out=(Documentation/[!K]* tools/testing tools/perf 'arch/[!ux]*/*.[chS]' 'arch/*/dts/*' 'sound/*.[ch]')
for each in accel clk gpu hwmon iio infiniband/hw input media net/ethernet net/wireless phy pinctrl \
  platform scsi staging usb video; do
  left_out+=("drivers/$each/*.[ch]")
done

# prepare: sets $kernel to a kernel that can be run
prepare() {
  need busybox busybox-static setpriv util-linux ip iproute2 setsid util-linux
  if [ -n "${UBLK_RBD_UML:-}" ]; then
    given
    return
  fi
  local config
  config=$(options | sha256sum | cut -c 1-12)
  # The newest kernel that was built with this configuration.
  kernel=$(printf '%s\n' "$cache"/uml-*-"$config"/linux | sort -V | tail -n 1)
  [ -x "$kernel" ] && return
  exec {lock}>"$cache/uml.lock"
  flock -n $lock || say "waiting for another build" && flock $lock
  kernel=$(printf '%s\n' "$cache"/uml-*-"$config"/linux | sort -V | tail -n 1)
  [ -x "$kernel" ] || { absent "the kernel of the guest" && build "$config"; } || exit 125
  exec {lock}>&-
}

# The options that are set.
options() { cat "$here/uml.config" ${rdma:+"$here/rdma.config"}; }

# A kernel of the caller's.
given() {
  [ -r "$UBLK_RBD_UML" ] || die "UBLK_RBD_UML: $UBLK_RBD_UML cannot be read"
  kernel=$UBLK_RBD_UML
  case $kernel in
    *.xz)
      kernel=$cache/given-$(sha256sum "$UBLK_RBD_UML" | cut -c 1-12)
      [ -x "$kernel" ] && return
      xz -dc "$UBLK_RBD_UML" >"$kernel.$$" && chmod +x "$kernel.$$" && mv "$kernel.$$" "$kernel" ||
        die "UBLK_RBD_UML: $UBLK_RBD_UML is no xz file"
      ;;
  esac
  [ -x "$kernel" ] || die "UBLK_RBD_UML: $kernel cannot be run"
}

# build CONFIG: makes a kernel and sets $kernel. It is made beside its place and then renamed, so what
# is there is complete.
build() {
  need gcc gcc make make flex flex bison bison bc bc xz xz-utils depmod kmod
  local work=$cache/uml.partial begin=$SECONDS package deb version
  rm -rf "$work"
  suite "$work/apt" trixie-backports
  package=$(newest '^linux-source-[0-9.]+$')
  [ -n "$package" ] || die "trixie-backports has no linux-source"
  say "building User-Mode Linux of $package, a matter of minutes"
  deb=$(download "$package") || exit 125
  version=$(dpkg-deb -f "$deb" Version | cut -d- -f1)

  local source=$work/source object=$work/object jobs
  mkdir "$source" "$object"
  dpkg-deb --fsys-tarfile "$deb" | tar -x -O "./usr/src/$package.tar.xz" | xz -T0 -dc |
    tar -x -C "$source" --strip-components 1 --no-same-owner --wildcards "${left_out[@]/#/--exclude=*/}" ||
    die "cannot unpack $package"
  rm -rf "$work/apt"
  jobs=$(nproc)
  options >"$work/config"
  {
    make -C "$source" ARCH=um "O=$object" "KCONFIG_ALLCONFIG=$work/config" allnoconfig &&
      all_set "$work/config" "$object/.config" &&
      make -C "$object" "-j$jobs" ARCH=um linux &&
      finish "$object" "$work/done"
  } >"$cache/uml.log" 2>&1 </dev/null || {
    grep -aE 'error|Error|not set' "$cache/uml.log" | head -n 20 >&2
    die "the build failed (all of it: $cache/uml.log)"
  }
  mv "$work/done" "$cache/uml-$version-$1" || exit 125
  rm -rf "$work"
  kernel=$cache/uml-$version-$1/linux
  say "User-Mode Linux $version was built in $((SECONDS - begin)) s"
}

# all_set WANTED GOT: Kconfig drops what it does not know or whose dependencies are not met, and says
# nothing of it.
all_set() {
  local line ok=yes
  while read -r line; do
    grep -qxF "$line" "$2" || { echo "not set: $line" && ok=; }
  done < <(grep '^CONFIG' "$1")
  [ -n "$ok" ]
}

# finish OBJECT DIR: what is kept of a build: the kernel, and the names of the built-in modules, so that
# modprobe of one of them succeeds
finish() {
  local release modules
  release=$(cat "$1/include/config/kernel.release")
  modules=$2/lib/modules/$release
  mkdir -p "$modules"
  cp "$1/modules.builtin" "$1/modules.builtin.modinfo" "$modules/"
  : >"$modules/modules.order"
  depmod -b "$2" "$release"
  mv "$modules" "$2/modules"
  rm -r "$2/lib"
  cp "$1/.config" "$2/config"
  strip -o "$2/linux" "$1/linux"
}

# A processor that no other guest runs on; else any. The kernel and the program it runs are two tasks of
# the host that take turns: on two idle processors every switch between them wakes one up, which makes
# a system call of the guest five times dearer. The lock is held while the guest runs.
choose_processor() {
  local each lock first='' list
  list=$(taskset -pc $$ | sed 's/.*: //')
  for each in ${list//,/ }; do
    for each in $(seq "${each%-*}" "${each#*-}"); do
      first=${first:-$each}
      exec {lock}>"$cache/processor-$each.lock"
      flock -n "$lock" && pin=$each && return
      exec {lock}>&-
    done
  done
  pin=$first
}

# Where the guest's memory can be, which is a file that programs are run from: in memory if that has room.
choose_memory() {
  local dir
  for dir in /dev/shm /run /tmp "$cache"; do
    [ -w "$dir" ] && [[ ,$(findmnt -n -o OPTIONS -T "$dir"), != *,noexec,* ]] &&
      [ "$(df -m --output=avail "$dir" | tail -n 1)" -ge "$mem" ] && memory=$dir && return
  done
  die "no room for $mem MiB of memory in /dev/shm, /run, /tmp or $cache"
}

# start JOB: boots the kernel, sets $guest to its pid
start() {
  printf 'out=/dev/ttyS0 err=/dev/ttyS1\n' >>"$1/settings"
  [ -d "${kernel%/*}/modules" ] && cp -r "${kernel%/*}/modules" "$1/modules"
  cpus=${cpus:-1}
  [ -n "$pin" ] || { [ "$cpus" = 1 ] && choose_processor; }
  local on=()
  [ "${pin:-none}" = none ] || on=(taskset -c "$pin")
  choose_memory
  # Lines are pipes: UML cannot poll plain files.
  TMPDIR=$memory apart "${on[@]}" "$kernel" "mem=${mem}M" "ncpus=$cpus" seccomp=auto \
    root=/dev/root rootfstype=hostfs rootflags=/ ro \
    con=null con0=null,fd:3 ssl=null ssl0=null,fd:4 ssl1=null,fd:5 uml_dir="$1/" umid=uml \
    panic=-1 quiet ${append:+$append} "init=$1/init" -- "$1" \
    </dev/null 3> >(cat >"$1/console") 4> >(cat) 5> >(cat >&2) >>"$1/host" 2>&1 &
  guest=$!
}
