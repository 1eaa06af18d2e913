# Environment for building: which libclang the bindings are generated with, and where tools are. To
# be sourced, by bash. Silent and cheap: it looks, and installs nothing; `integration/lab setup`
# does.

integration=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
export PATH+=:/usr/sbin:/sbin
[[ -x ${HOME-}/.cargo/bin/cargo ]] && PATH+=:$HOME/.cargo/bin

# The bindings' generator panics with libclang 16 and later, which give unnamed structs and unions
# names that are no identifiers. Where the distribution has nothing older, setup fetches one, which
# comes without the compiler's own headers.
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
