use std::io;

use super::{Endpoint, Stream};
use crate::{config::Config, error::Error};

/// Creates both endpoints of a connection within this process, for tests.
impl Endpoint {
    /// Returns both endpoints of a connection within this process, with the default [`Config`].
    ///
    /// Works like [`Endpoint::pair`](crate::Endpoint::pair). Tests may pause tokio's clock: see
    /// [unit tests](crate::guide::connecting#unit-tests).
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
        Self::pair_with(&Config::default())
    }

    /// Returns both endpoints of a connection within this process. Both use `config`.
    ///
    /// # Errors
    ///
    /// The errors of [`Endpoint::pair_with`](crate::Endpoint::pair_with).
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime. The runtime need not have I/O enabled.
    #[track_caller]
    pub fn pair_with(config: &Config) -> Result<(Self, Self), Error> {
        let (near, far) = crate::endpoint::Endpoint::pair_with(config)?;
        Ok((Self::new(near)?, Self::new(far)?))
    }
}

/// Creates both sides of a stream within this process, for tests.
impl Stream {
    /// Returns both sides of a stream within this process, with the default [`Config`].
    ///
    /// Works like [`Stream::pair`](crate::Stream::pair).
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
        Self::pair_with(&Config::default())
    }

    /// Returns both sides of a stream within this process. Both use `config`.
    ///
    /// # Errors
    ///
    /// The errors of [`Stream::pair_with`](crate::Stream::pair_with).
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime. The runtime need not have I/O enabled.
    #[track_caller]
    pub fn pair_with(config: &Config) -> io::Result<(Self, Self)> {
        let (near, far) = crate::stream::Stream::pair_with(config)?;
        Ok((Self::from_std(near)?, Self::from_std(far)?))
    }
}
