//! Fault injection for a program's unit tests.
//!
//! [`Endpoint::pair`](crate::Endpoint::pair) and listeners on `memory://name` create in-memory
//! connections. [`Faults`] ends such a connection, delays its messages, or withholds its credits.
//! So tests of reconnects, timeouts and backpressure need no network. [The
//! guide](crate::guide::connecting#unit-tests) shows such tests.
//!
//! # Examples
//!
//! A client that reconnects when its connection is lost:
//!
//! ```
//! use rdmsg::{Connector, Listener, PersistentEvent, testing::Faults};
//!
//! # fn main() -> Result<(), rdmsg::Error> {
//! let listener = Listener::bind("memory://orders")?;
//! let client = Connector::new().persist("memory://orders")?;
//! assert!(matches!(client.next_event()?, PersistentEvent::Connected { .. }));
//! let server = listener.accept()?;
//!
//! Faults::of(&server).unwrap().cut();
//! assert!(matches!(client.next_event()?, PersistentEvent::Lost { .. }));
//! assert!(matches!(client.next_event()?, PersistentEvent::Connected { .. }));
//! let server = listener.accept()?;
//! client.send(b"again")?;
//! assert_eq!(server.recv()?, b"again");
//! # Ok(())
//! # }
//! ```

mod faults;

pub use self::faults::{Faults, HeldFrames, WithheldCredit};
