use std::io;

use super::{Endpoint, Stream};
use crate::error::Error;

/// Creates both endpoints of a connection within this process, for tests.
impl Endpoint {
    /// Returns both endpoints of a connection within this process, with the default
    /// [`Config`](crate::Config).
    ///
    /// Works like [`Endpoint::pair`](crate::Endpoint::pair). Tests may pause tokio's clock: see
    /// [unit tests](crate::guide::connecting#unit-tests). To set a configuration, pass the
    /// endpoints of [`Connector::pair`](crate::Connector::pair) to [`new`](Self::new).
    ///
    /// # Errors
    ///
    /// The errors of [`Endpoint::pair`](crate::Endpoint::pair).
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime. The runtime need not have I/O enabled.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), rdmsg::Error> {
    /// let (client, server) = rdmsg::tokio::Endpoint::pair()?;
    /// client.send(b"hello").await?;
    /// assert_eq!(server.recv().await?, b"hello");
    /// client.close().await
    /// # }
    /// ```
    #[track_caller]
    pub fn pair() -> Result<(Self, Self), Error> {
        let (near, far) = crate::endpoint::Endpoint::pair()?;
        Ok((Self::new(near)?, Self::new(far)?))
    }
}

/// Creates both sides of a stream within this process, for tests.
impl Stream {
    /// Returns both sides of a stream within this process, with the default
    /// [`Config`](crate::Config).
    ///
    /// Works like [`Stream::pair`](crate::Stream::pair). To set a configuration, pass the streams
    /// of [`Connector::pair_stream`](crate::Connector::pair_stream) to
    /// [`from_std`](Self::from_std).
    ///
    /// # Errors
    ///
    /// The errors of [`Stream::pair`](crate::Stream::pair).
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime. The runtime need not have I/O enabled.
    #[track_caller]
    pub fn pair() -> io::Result<(Self, Self)> {
        let (near, far) = crate::stream::Stream::pair()?;
        Ok((Self::from_std(near)?, Self::from_std(far)?))
    }
}
