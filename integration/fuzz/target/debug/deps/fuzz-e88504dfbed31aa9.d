/work/main/integration/fuzz/target/debug/deps/fuzz-e88504dfbed31aa9.d: src/lib.rs src/../../../src/proto/mod.rs src/../../../src/proto/account.rs src/../../../src/proto/clock.rs src/../../../src/proto/connection/mod.rs src/../../../src/proto/connection/closing.rs src/../../../src/proto/connection/establish.rs src/../../../src/proto/connection/keepalive.rs src/../../../src/proto/connection/receiving.rs src/../../../src/proto/connection/transfer.rs src/../../../src/proto/credit.rs src/../../../src/proto/frame.rs src/../../../src/proto/hello.rs src/../../../src/proto/inbound.rs src/../../../src/proto/lending.rs src/../../../src/proto/output.rs src/../../../src/proto/outputs.rs src/../../../src/proto/params.rs src/../../../src/proto/private.rs src/../../../src/proto/reason.rs src/../../../src/proto/reject.rs src/../../../src/proto/send_ring.rs src/../../../src/proto/statistics.rs src/../../../src/status/mod.rs src/../../../src/status/cm.rs src/../../../src/status/os.rs src/../../../src/status/wc.rs src/device.rs src/frame.rs src/hello.rs src/operations.rs src/sizes.rs

/work/main/integration/fuzz/target/debug/deps/libfuzz-e88504dfbed31aa9.rmeta: src/lib.rs src/../../../src/proto/mod.rs src/../../../src/proto/account.rs src/../../../src/proto/clock.rs src/../../../src/proto/connection/mod.rs src/../../../src/proto/connection/closing.rs src/../../../src/proto/connection/establish.rs src/../../../src/proto/connection/keepalive.rs src/../../../src/proto/connection/receiving.rs src/../../../src/proto/connection/transfer.rs src/../../../src/proto/credit.rs src/../../../src/proto/frame.rs src/../../../src/proto/hello.rs src/../../../src/proto/inbound.rs src/../../../src/proto/lending.rs src/../../../src/proto/output.rs src/../../../src/proto/outputs.rs src/../../../src/proto/params.rs src/../../../src/proto/private.rs src/../../../src/proto/reason.rs src/../../../src/proto/reject.rs src/../../../src/proto/send_ring.rs src/../../../src/proto/statistics.rs src/../../../src/status/mod.rs src/../../../src/status/cm.rs src/../../../src/status/os.rs src/../../../src/status/wc.rs src/device.rs src/frame.rs src/hello.rs src/operations.rs src/sizes.rs

src/lib.rs:
src/../../../src/proto/mod.rs:
src/../../../src/proto/account.rs:
src/../../../src/proto/clock.rs:
src/../../../src/proto/connection/mod.rs:
src/../../../src/proto/connection/closing.rs:
src/../../../src/proto/connection/establish.rs:
src/../../../src/proto/connection/keepalive.rs:
src/../../../src/proto/connection/receiving.rs:
src/../../../src/proto/connection/transfer.rs:
src/../../../src/proto/credit.rs:
src/../../../src/proto/frame.rs:
src/../../../src/proto/hello.rs:
src/../../../src/proto/inbound.rs:
src/../../../src/proto/lending.rs:
src/../../../src/proto/output.rs:
src/../../../src/proto/outputs.rs:
src/../../../src/proto/params.rs:
src/../../../src/proto/private.rs:
src/../../../src/proto/reason.rs:
src/../../../src/proto/reject.rs:
src/../../../src/proto/send_ring.rs:
src/../../../src/proto/statistics.rs:
src/../../../src/status/mod.rs:
src/../../../src/status/cm.rs:
src/../../../src/status/os.rs:
src/../../../src/status/wc.rs:
src/device.rs:
src/frame.rs:
src/hello.rs:
src/operations.rs:
src/sizes.rs:
