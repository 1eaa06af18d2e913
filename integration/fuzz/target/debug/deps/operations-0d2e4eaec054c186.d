/work/main/integration/fuzz/target/debug/deps/operations-0d2e4eaec054c186.d: src/bin/operations.rs

/work/main/integration/fuzz/target/debug/deps/liboperations-0d2e4eaec054c186.rmeta: src/bin/operations.rs

src/bin/operations.rs:
