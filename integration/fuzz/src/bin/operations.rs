#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::one_life(bytes));
