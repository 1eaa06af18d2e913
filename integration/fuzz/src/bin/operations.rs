#![no_main]

libfuzzer_sys::fuzz_target!(|operations: fuzz::Operations| fuzz::one_life(&operations));
