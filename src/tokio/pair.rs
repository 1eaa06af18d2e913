use std::io;

use super::{Endpoint, Stream};
use crate::{config::Config, error::Error};

/// Both ends of a connection within this process, for tests.
impl Endpoint {
    /// Returns both ends of a connection within this process, with the default
    /// [`Config`].
    ///
    /// As [`Endpoint::pair`](crate::Endpoint::pair). It works with a paused clock: see [unit
    /// tests](crate::guide::connecting#unit-tests).
    ///
    /// # Errors
    ///
    /// Those of [`Endpoint::pair`](crate::Endpoint::pair).
    ///
    /// # Panics
    ///
    /// Outside of a runtime, which needs no I/O.
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

    /// Returns both ends of a connection within this process, with a configuration for both.
    ///
    /// # Errors
    ///
    /// Those of [`Endpoint::pair_with`](crate::Endpoint::pair_with).
    ///
    /// # Panics
    ///
    /// Outside of a runtime, which needs no I/O.
    #[track_caller]
    pub fn pair_with(config: &Config) -> Result<(Self, Self), Error> {
        let (near, far) = crate::endpoint::Endpoint::pair_with(config)?;
        Ok((Self::new(near)?, Self::new(far)?))
    }
}

/// Both ends of a connection within this process, for tests.
impl Stream {
    /// Returns both ends of a stream within this process, with the default [`Config`].
    ///
    /// As [`Stream::pair`](crate::Stream::pair).
    ///
    /// # Errors
    ///
    /// Those of [`Stream::pair`](crate::Stream::pair).
    ///
    /// # Panics
    ///
    /// Outside of a runtime, which needs no I/O.
    #[track_caller]
    pub fn pair() -> io::Result<(Self, Self)> {
        Self::pair_with(&Config::default())
    }

    /// Returns both ends of a stream within this process, with a configuration for both.
    ///
    /// # Errors
    ///
    /// Those of [`Stream::pair_with`](crate::Stream::pair_with).
    ///
    /// # Panics
    ///
    /// Outside of a runtime, which needs no I/O.
    #[track_caller]
    pub fn pair_with(config: &Config) -> io::Result<(Self, Self)> {
        let (near, far) = crate::stream::Stream::pair_with(config)?;
        Ok((Self::from_std(near)?, Self::from_std(far)?))
    }
}
