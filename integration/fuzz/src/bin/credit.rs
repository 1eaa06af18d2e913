#![no_main]

libfuzzer_sys::fuzz_target!(|exchange: (u8, u32, Vec<u8>)| {
    let (window, start, steps) = exchange;
    rdmsg_proto::testing::exchange_credit(window.into(), start, &steps);
    rdmsg_proto::testing::exchange_control_messages(window.into(), start, &steps);
});
