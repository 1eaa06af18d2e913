/work/main/integration/fuzz/target/debug/deps/derive_arbitrary-5959577db5fd2194.d: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/derive_arbitrary-1.5.0/src/lib.rs /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/derive_arbitrary-1.5.0/src/container_attributes.rs /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/derive_arbitrary-1.5.0/src/field_attributes.rs /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/derive_arbitrary-1.5.0/src/variant_attributes.rs

/work/main/integration/fuzz/target/debug/deps/libderive_arbitrary-5959577db5fd2194.so: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/derive_arbitrary-1.5.0/src/lib.rs /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/derive_arbitrary-1.5.0/src/container_attributes.rs /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/derive_arbitrary-1.5.0/src/field_attributes.rs /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/derive_arbitrary-1.5.0/src/variant_attributes.rs

/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/derive_arbitrary-1.5.0/src/lib.rs:
/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/derive_arbitrary-1.5.0/src/container_attributes.rs:
/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/derive_arbitrary-1.5.0/src/field_attributes.rs:
/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/derive_arbitrary-1.5.0/src/variant_attributes.rs:
