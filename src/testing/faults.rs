use std::{fmt, sync::Arc};

use crate::{
    endpoint::Endpoint,
    engine::Engine,
    link::{Link, Withholding},
    transport::WireControl,
};

/// Injects faults into an in-memory connection.
///
/// The faults apply to the side whose endpoint was passed to [`of`](Self::of). This value does not
/// keep the connection open. If the connection's engine has no thread, each method returns only
/// after the fault has taken effect on both sides.
pub struct Faults {
    link: Arc<Link>,
    engine: Engine,
}

impl Faults {
    /// Returns the fault injector of a connection, or `None` if the connection is not in-memory.
    #[must_use]
    pub fn of(endpoint: &Endpoint) -> Option<Self> {
        let (link, engine) = endpoint.link_and_engine();
        let (link, engine) = (Arc::clone(link), engine.clone());
        link.is_in_memory().then_some(Self { link, engine })
    }

    /// Ends the connection as if the link had failed.
    ///
    /// Both sides get the reason [`PeerDisconnected`](crate::CloseReason::PeerDisconnected).
    /// Messages that the peer's library has received are delivered first; [held](Self::hold)
    /// messages are lost. A connection with [`resume`](crate::Config::resume) resumes immediately,
    /// and a [`Persistent`](crate::Persistent) client dials again. This method has no effect after
    /// the connection has ended.
    ///
    /// # Examples
    ///
    /// ```
    /// use rdmsg::{CloseReason, Endpoint, Error, testing::Faults};
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let (client, server) = Endpoint::pair()?;
    /// Faults::of(&client).unwrap().cut();
    /// for side in [client, server] {
    ///     let error = side.recv().unwrap_err();
    ///     assert!(matches!(error, Error::Disconnected(CloseReason::PeerDisconnected)));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn cut(&self) {
        if let Some(wire) = self.wire() {
            wire.cut();
            self.link.serve();
        }
    }

    /// Aborts the connection from this side: see [`Endpoint::abort`].
    ///
    /// The peer gets the reason [`PeerAborted`](crate::CloseReason::PeerAborted) with `code`.
    pub fn abort(&self, code: u32) {
        if !self.engine.handle().is_inherited() {
            self.link.abort(code);
        }
    }

    /// Delays everything that this side sends, until the returned value is dropped.
    ///
    /// This side's messages, credits, confirmations and close requests are delayed. Those of the
    /// peer are not. If the session resumes on a new connection, the delay does not apply to the
    /// new connection.
    ///
    /// # Examples
    ///
    /// ```
    /// use rdmsg::{Endpoint, testing::Faults};
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let (client, server) = Endpoint::pair()?;
    /// let held = Faults::of(&client).unwrap().hold();
    /// client.send(b"late")?;
    /// assert_eq!(held.count(), 1);
    /// assert!(server.try_recv()?.is_none());
    /// drop(held);
    /// assert_eq!(server.recv()?, b"late");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "a drop releases the frames"]
    pub fn hold(&self) -> HeldFrames {
        let wire = self.wire();
        if let Some(wire) = &wire {
            wire.hold();
        }
        HeldFrames {
            wire,
            link: Arc::clone(&self.link),
            engine: self.engine.clone(),
        }
    }

    /// Withholds credits from the peer, until the returned value is dropped.
    ///
    /// Messages that arrive at this side after the call occupy their credits even after they are
    /// dropped, as if the program had not dropped them. So the peer's messages use up this
    /// side's [`receive_window`](crate::Config::receive_window).
    ///
    /// # Examples
    ///
    /// ```
    /// use rdmsg::{Config, Connector, testing::Faults};
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let config = Config::default().with(|config| config.receive_window = Some(2));
    /// let (client, server) = Connector::new().config(&config).pair()?;
    /// let withheld = Faults::of(&server).unwrap().withhold_credit();
    /// for _ in 0..2 {
    ///     client.send(b"taken")?;
    ///     server.recv()?;
    /// }
    /// assert!(client.try_send(b"no room").unwrap_err().is_full());
    /// drop(withheld);
    /// client.try_send(b"room").unwrap();
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "a drop returns the credit"]
    pub fn withhold_credit(&self) -> WithheldCredit {
        WithheldCredit {
            withholding: Withholding::begin(&self.link),
            link: Arc::clone(&self.link),
            engine: self.engine.clone(),
        }
    }
}

impl Faults {
    /// Returns the fault control of the current connection. Returns `None` if there is no current
    /// connection, or in a child process that has inherited the connection.
    fn wire(&self) -> Option<WireControl> {
        if self.engine.handle().is_inherited() {
            return None;
        }
        self.link.wire()
    }
}

/// Delays everything that one side sends, until this value is dropped: see [`Faults::hold`].
#[must_use = "a drop releases the frames"]
pub struct HeldFrames {
    /// The fault control of the connection; `None` if [`Faults::hold`] found no connection.
    wire: Option<WireControl>,
    link: Arc<Link>,
    /// The engine, kept alive because it delivers the frames when this value is dropped.
    engine: Engine,
}

impl HeldFrames {
    /// Returns the number of delayed work requests, for example requests to send a frame or to
    /// access the peer's memory.
    #[must_use]
    pub fn count(&self) -> usize {
        self.wire.as_ref().map_or(0, WireControl::held)
    }
}

impl Drop for HeldFrames {
    fn drop(&mut self) {
        if let Some(wire) = self
            .wire
            .as_ref()
            .filter(|_| !self.engine.handle().is_inherited())
        {
            wire.release();
            self.link.serve();
        }
    }
}

/// Withholds the credits of one side: see [`Faults::withhold_credit`]. Dropping this value returns
/// the credits to the peer.
#[must_use = "a drop returns the credit"]
pub struct WithheldCredit {
    withholding: Arc<Withholding>,
    link: Arc<Link>,
    /// The engine, kept alive because it delivers the credits when this value is dropped.
    engine: Engine,
}

impl Drop for WithheldCredit {
    fn drop(&mut self) {
        if !self.engine.handle().is_inherited() {
            self.withholding.return_credit(&self.link);
        }
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults")
            .field("link", &self.link)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for HeldFrames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldFrames")
            .field("count", &self.count())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for WithheldCredit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithheldCredit").finish_non_exhaustive()
    }
}
