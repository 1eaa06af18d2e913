//! The protocol as a pure state machine: hello, frames, credits, large messages, keepalive, close.
//!
//! [`Connection`] takes inputs (commands, connection manager events, completions, deadlines) and
//! returns outputs, which its driver carries out. It does no I/O, reads no clock and calls no
//! foreign function, so the tests drive two of them against each other under any interleaving, and
//! the fuzz targets compile this folder by itself. PROTOCOL.md describes what travels between two
//! sides.
#![forbid(unsafe_code)]

mod account;
mod batch;
mod capabilities;
mod clock;
mod connection;
mod control_receives;
mod credit;
mod frame;
mod gauge;
mod hello;
mod host;
mod inbound;
mod outbound;
mod output;
mod outputs;
mod pace;
mod params;
mod private;
#[cfg(test)]
mod protocol_page;
mod read_watchdog;
mod reason;
mod reject;
#[cfg(test)]
mod scale;
mod send_ring;
mod sequence;
mod statistics;
#[cfg(test)]
mod testing;
mod violation;

pub(crate) use self::{
    account::Account,
    batch::{MOST_PARTS, PART_HEADER_LEN, parts},
    clock::Clock,
    connection::{Activity, Connection, Flush, MovedBytes, Proof},
    control_receives::CONTROL_RECEIVES,
    frame::{Descriptor, HEADER_LEN},
    gauge::{Gauge, Part},
    hello::{REPLY_DATA_MAX, REQUEST_DATA_MAX},
    host::Host,
    output::{
        Arrival, BatchRoom, CmCall, CmInput, CmOp, DrainSide, Event, Note, Output, Read, Refusal,
        SendRefused, Topic, Transmit, TransportTraits, Work,
    },
    pace::{LONGEST_CHUNK, SHORTEST_CHUNK},
    params::{Params, ReadDepth},
    reject::{REJECT_DATA_MAX, Reject},
    send_ring::{CONTROL_SENDS, READS},
};
pub use self::{
    capabilities::Capabilities,
    params::Negotiated,
    reason::{CloseReason, Mismatch, PeerTimeout, Phase},
    statistics::Statistics,
    violation::Violation,
};
