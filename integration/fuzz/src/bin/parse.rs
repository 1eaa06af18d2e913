#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rdmsg_proto::testing::parse_frame(bytes));
