# shellcheck shell=bash
# Packages of another Debian suite, as files: apt with a state of its own, which leaves the host's
# alone. To be sourced by `run`.

keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# The host's own mirror: the first that ends in /debian, in sources of either format.
mirror() {
  if [ -n "${UBLK_RBD_DEBIAN_MIRROR:-}" ]; then
    echo "$UBLK_RBD_DEBIAN_MIRROR"
    return
  fi
  cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
    grep -E '^ *(deb |URIs:)' | grep -oE '[a-z]+://[^ ]*/debian/?( |$)' | head -n 1 | tr -d ' '
}

# private PROGRAM ARG...: apt-get or apt-cache on the state in $apt
private() {
  local program=$1 option options=()
  shift
  for option in Dir::State="$apt" Dir::State::status="$apt/status" Dir::Cache="$apt" \
    Dir::Etc::sourcelist="$apt/sources.list" Dir::Etc::sourceparts=/dev/null \
    Dir::Etc::preferences=/dev/null Dir::Etc::preferencesparts=/dev/null \
    APT::Sandbox::User=root Debug::NoLocking=1 Acquire::Languages=none Acquire::Retries=3 \
    Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false; do
    options+=(-o "$option")
  done
  "$program" -q "${options[@]}" "$@"
}

# suite DIR NAME: a state in DIR, which must not exist, for one suite
suite() {
  local uri
  apt=$1
  [ -e $keyring ] || die "missing: $keyring (install with \`apt-get install debian-archive-keyring\`)"
  uri=$(mirror)
  [ -n "$uri" ] || die "no Debian mirror in /etc/apt/sources.list*: name one in UBLK_RBD_DEBIAN_MIRROR"
  mkdir -p "$apt/lists/partial" "$apt/archives/partial"
  : >"$apt/status"
  echo "deb [signed-by=$keyring] $uri $2 main" >"$apt/sources.list"
  private apt-get update >"$apt/log" 2>&1 || {
    tail -n 5 "$apt/log" >&2
    die "apt-get update for $2 failed"
  }
}

# newest REGEX: the package with the highest version in its name
newest() { private apt-cache search --names-only "$1" | cut -d' ' -f1 | sort -V | tail -n 1; }

# download PACKAGE: the name of the file it is in
download() {
  (cd "$apt" && private apt-get download "$1") >>"$apt/log" 2>&1 || {
    tail -n 5 "$apt/log" >&2
    die "downloading $1 failed"
  }
  echo "$apt/$1"_*.deb
}
