#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::one_header(bytes));
