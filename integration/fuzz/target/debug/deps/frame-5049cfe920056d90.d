/work/main/integration/fuzz/target/debug/deps/frame-5049cfe920056d90.d: src/bin/frame.rs

/work/main/integration/fuzz/target/debug/deps/libframe-5049cfe920056d90.rmeta: src/bin/frame.rs

src/bin/frame.rs:
