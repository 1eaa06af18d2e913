/work/main/integration/fuzz/target/debug/deps/libfuzzer_sys-e1ee9b8ba2d06145.d: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/libfuzzer-sys-0.4.13/src/lib.rs

/work/main/integration/fuzz/target/debug/deps/liblibfuzzer_sys-e1ee9b8ba2d06145.rmeta: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/libfuzzer-sys-0.4.13/src/lib.rs

/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/libfuzzer-sys-0.4.13/src/lib.rs:
