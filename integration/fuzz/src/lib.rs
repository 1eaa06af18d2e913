//! Fuzz targets of rdmsg's protocol: bytes and sequences of events for `proto`, each with what must
//! be true of the outcome.
//!
//! `proto` uses no other layer but `status`, the PDUs of TCP no other but `proto`, and none calls
//! into C. So they are compiled right here, from the library's own source, with the fuzzer's
//! instrumentation: in seconds, without the bindings and without a device.

#[allow(dead_code, reason = "the receiver uses all of it")]
#[path = "../../../src/transport/tcp/pdu.rs"]
mod pdu;
#[allow(dead_code, unused_imports, reason = "the engine uses all of it")]
#[path = "../../../src/proto/mod.rs"]
mod proto;
#[allow(dead_code, unused_imports, reason = "as above")]
#[path = "../../../src/status/mod.rs"]
mod status;

mod device;
mod frame;
mod header;
mod hello;
mod operations;
mod sizes;

pub use frame::one_frame;
pub use header::one_header;
pub use hello::one_hello;
pub use operations::{Operations, one_life};
