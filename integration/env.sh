# Sets the environment for building: the libclang with which bindgen generates the bindings, and the
# folders of tools in PATH. Bash scripts source this file. It installs and prints nothing. To
# install missing packages, run `integration/lab setup`.

integration=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
export PATH+=:/usr/sbin:/sbin
[[ -x ${HOME-}/.cargo/bin/cargo ]] && PATH+=:$HOME/.cargo/bin

# bindgen panics with libclang 16 and later, because these versions give unnamed structs and unions
# names that are not identifiers. If the distribution has no older libclang, `integration/lab setup`
# downloads one. The downloaded libclang lacks the compiler's own headers, so use those of gcc.
if [[ -z ${LIBCLANG_PATH-} ]]; then
    for libclang in /usr/lib/llvm-{14,15,13,12,11}/lib; do
        [[ -e $libclang/libclang.so.1 || -e $libclang/libclang.so ]] && break
        libclang=
    done
    fetched=${CARGO_TARGET_DIR:-${integration%/*}/target}/lab/libclang/clang/native
    if [[ -n $libclang ]]; then
        export LIBCLANG_PATH=$libclang
    elif [[ -e $fetched/libclang.so ]]; then
        export LIBCLANG_PATH=$fetched
        BINDGEN_EXTRA_CLANG_ARGS="${BINDGEN_EXTRA_CLANG_ARGS-} -I$(gcc -print-file-name=include)"
        export BINDGEN_EXTRA_CLANG_ARGS
    fi
    unset fetched
fi
unset integration libclang
