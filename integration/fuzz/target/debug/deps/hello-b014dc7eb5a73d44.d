/work/main/integration/fuzz/target/debug/deps/hello-b014dc7eb5a73d44.d: src/bin/hello.rs

/work/main/integration/fuzz/target/debug/deps/libhello-b014dc7eb5a73d44.rmeta: src/bin/hello.rs

src/bin/hello.rs:
