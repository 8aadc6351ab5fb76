# Sourced by ./demo and ./test: finds a Rust that is new enough, or installs Debian's.
#
#   need_rust NAME    puts cargo on the PATH, or ends with the one command that does; NAME says who asks

rust_wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

# Whether version $1 is at least version $2.
version_at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -1)" = "$2" ]; }

# The version of this cargo, which comes with the compiler of the same number. Nothing if it does not run.
cargo_version() { "$1" --version 2>/dev/null | awk '{ print $2 }'; }

need_rust() {
    local cargo found old=
    for cargo in "$(command -v cargo)" "$HOME/.cargo/bin/cargo" /usr/bin/cargo; do
        [ -x "$cargo" ] || continue
        found=$(cargo_version "$cargo")
        if [ -n "$found" ] && version_at_least "$found" "$rust_wanted"; then
            PATH=$(dirname "$cargo"):$PATH
            return
        fi
        old=${old:-$found}
    done
    local have=${old:+", and this is $old"}
    local command="apt-get install cargo-web rustc-web"
    [ "$(id -u)" = 0 ] || command="sudo $command"
    # Debian's older packages would have to go: that is for the user to decide.
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! dpkg -s cargo >/dev/null 2>&1; then
        echo "$1: Rust $rust_wanted or later is needed$have: installing Debian's cargo-web and rustc-web"
        export DEBIAN_FRONTEND=noninteractive
        apt-get -qq update
        apt-get -qq install -y --no-install-recommends ca-certificates cargo-web rustc-web >/dev/null || true
        if version_at_least "$(cargo_version /usr/bin/cargo)" "$rust_wanted"; then
            PATH=/usr/bin:$PATH
            return
        fi
    fi
    if apt-cache show cargo-web >/dev/null 2>&1; then
        echo "$1: Rust $rust_wanted or later is needed$have. Debian has it: $command" >&2
    else
        echo "$1: Rust $rust_wanted or later is needed$have. Install it from https://rustup.rs" >&2
    fi
    exit 1
}
