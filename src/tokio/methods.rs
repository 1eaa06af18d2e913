//! The methods and traits that a stream, its owned halves and its borrowed halves have in common.
//! Each type has a field `read`, `write`, or both.

/// The methods of a type that reads.
macro_rules! reading_methods {
    ($type:ty) => {
        /// Reading without waiting, and waiting without reading.
        impl $type {
            /// Copies the next bytes without taking them. Waits for some as a read does.
            ///
            /// It may return fewer bytes than there are, and 0 at the end. A dropped future has
            /// taken nothing.
            ///
            /// # Errors
            ///
            /// Those of a read.
            pub async fn peek(&self, buf: &mut [u8]) -> std::io::Result<usize> {
                self.read.peek(buf).await
            }

            /// As [`peek`](Self::peek), without a future.
            ///
            /// One task at a time waits by `poll_` methods to read or peek. A later call replaces
            /// its waker.
            ///
            /// # Errors
            ///
            /// Those of a read.
            pub fn poll_peek(
                &self,
                cx: &mut std::task::Context<'_>,
                buf: &mut ::tokio::io::ReadBuf<'_>,
            ) -> std::task::Poll<std::io::Result<usize>> {
                self.read.poll_peek(cx, buf)
            }

            /// Waits until a [`try_read`](Self::try_read) may return something: bytes, the end, or
            /// an error.
            ///
            /// Several tasks may wait. It returns at once after a read that found something, and
            /// for a stream just accepted. If there is nothing then, `try_read` fails with
            /// [`WouldBlock`](std::io::ErrorKind::WouldBlock), and the next call waits.
            ///
            /// # Errors
            ///
            /// None.
            ///
            /// # Examples
            ///
            /// ```no_run
            /// # async fn run(stream: rdmsg::tokio::Stream) -> std::io::Result<()> {
            /// let mut buffer = [0; 4096];
            /// loop {
            ///     stream.readable().await?;
            ///     match stream.try_read(&mut buffer) {
            ///         Ok(0) => break,
            ///         Ok(count) => println!("{count} bytes"),
            ///         Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            ///         Err(error) => return Err(error),
            ///     }
            /// }
            /// # Ok(())
            /// # }
            /// ```
            pub async fn readable(&self) -> std::io::Result<()> {
                self.read.readable().await;
                Ok(())
            }

            /// As [`readable`](Self::readable), without a future.
            ///
            /// One task at a time waits by `poll_` methods to read or peek. A later call replaces
            /// its waker.
            ///
            /// # Errors
            ///
            /// None.
            pub fn poll_read_ready(
                &self,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                self.read.poll_read_ready(cx)
            }

            /// Reads the bytes that have arrived, and never waits. Returns 0 at the end.
            ///
            /// # Errors
            ///
            /// [`WouldBlock`](std::io::ErrorKind::WouldBlock) if there are none, and those of a
            /// read.
            pub fn try_read(&self, buf: &mut [u8]) -> std::io::Result<usize> {
                self.read.try_read(buf)
            }

            /// As [`try_read`](Self::try_read), into several buffers, one after the other.
            ///
            /// # Errors
            ///
            /// Those of [`try_read`](Self::try_read).
            pub fn try_read_vectored(
                &self,
                bufs: &mut [std::io::IoSliceMut<'_>],
            ) -> std::io::Result<usize> {
                self.read.try_read_vectored(bufs)
            }

            /// As [`try_read`](Self::try_read), behind the bytes that the buffer has already.
            ///
            /// # Errors
            ///
            /// Those of [`try_read`](Self::try_read).
            pub fn try_read_buf<B: bytes::BufMut>(&self, buf: &mut B) -> std::io::Result<usize> {
                self.read.try_read_buf(buf)
            }
        }

        impl ::tokio::io::AsyncRead for $type {
            fn poll_read(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                buf: &mut ::tokio::io::ReadBuf<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                self.get_mut().read.poll_read(cx, buf)
            }
        }

        impl ::tokio::io::AsyncBufRead for $type {
            /// Lends the buffer that the device wrote.
            fn poll_fill_buf(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<&[u8]>> {
                self.get_mut().read.poll_fill_buf(cx)
            }

            fn consume(self: std::pin::Pin<&mut Self>, count: usize) {
                self.get_mut().read.consume(count);
            }
        }
    };
}

/// The methods of a type that writes.
macro_rules! writing_methods {
    ($type:ty) => {
        /// Writing without waiting, and waiting without writing.
        impl $type {
            /// Waits until a [`try_write`](Self::try_write) may take some bytes, or fails.
            ///
            /// Several tasks may wait. It returns at once unless the last write was refused. If
            /// there is no room then, `try_write` fails with
            /// [`WouldBlock`](std::io::ErrorKind::WouldBlock), and the next call waits.
            ///
            /// # Errors
            ///
            /// None.
            pub async fn writable(&self) -> std::io::Result<()> {
                self.write.writable().await;
                Ok(())
            }

            /// As [`writable`](Self::writable), without a future.
            ///
            /// One task at a time waits by `poll_` methods to write. A later call replaces its
            /// waker.
            ///
            /// # Errors
            ///
            /// None.
            pub fn poll_write_ready(
                &self,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                self.write.poll_write_ready(cx)
            }

            /// Writes some of these bytes, and never waits. Returns the number of bytes taken.
            ///
            /// # Errors
            ///
            /// [`WouldBlock`](std::io::ErrorKind::WouldBlock) if there is no room, and those of a
            /// write.
            pub fn try_write(&self, buf: &[u8]) -> std::io::Result<usize> {
                self.write.try_write(&[std::io::IoSlice::new(buf)])
            }

            /// As [`try_write`](Self::try_write), from several buffers, one after the other.
            ///
            /// # Errors
            ///
            /// Those of [`try_write`](Self::try_write).
            pub fn try_write_vectored(
                &self,
                bufs: &[std::io::IoSlice<'_>],
            ) -> std::io::Result<usize> {
                self.write.try_write(bufs)
            }
        }

        impl ::tokio::io::AsyncWrite for $type {
            fn poll_write(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                buf: &[u8],
            ) -> std::task::Poll<std::io::Result<usize>> {
                self.write.poll_write(cx, &[std::io::IoSlice::new(buf)])
            }

            fn poll_write_vectored(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                parts: &[std::io::IoSlice<'_>],
            ) -> std::task::Poll<std::io::Result<usize>> {
                self.write.poll_write(cx, parts)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            /// Does nothing: the bytes that were written leave as soon as the peer has room.
            fn poll_flush(
                self: std::pin::Pin<&mut Self>,
                _: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                std::task::Poll::Ready(Ok(()))
            }

            /// Finishes the direction: the peer reads the bytes that were written, then the end.
            fn poll_shutdown(
                self: std::pin::Pin<&mut Self>,
                _: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                std::task::Poll::Ready(self.write.shut_down())
            }
        }
    };
}

/// The methods that the stream and its halves share. `$part` is a field with the stream's end.
/// `ready` returns the states of the fields `$direction`.
macro_rules! common_methods {
    ($type:ty, $part:ident, $($direction:ident),+) => {
        /// The connection.
        impl $type {
            /// Waits until one of these states holds, and returns all that hold.
            ///
            /// It is for a task that both reads and writes, by [`Interest::add`]. The states of a
            /// direction that has ended include [`READ_CLOSED`] or [`WRITE_CLOSED`]. A state may
            /// hold although a call fails with [`WouldBlock`](std::io::ErrorKind::WouldBlock);
            /// then the next wait for it is exact.
            ///
            /// [`Interest::add`]: ::tokio::io::Interest::add
            /// [`READ_CLOSED`]: ::tokio::io::Ready::READ_CLOSED
            /// [`WRITE_CLOSED`]: ::tokio::io::Ready::WRITE_CLOSED
            ///
            /// # Errors
            ///
            /// None.
            pub async fn ready(
                &self,
                interest: ::tokio::io::Interest,
            ) -> std::io::Result<::tokio::io::Ready> {
                let none = ::tokio::io::Ready::EMPTY;
                let exact = || none $(| self.$direction.ready_states(interest))+;
                let assumed = || none $(| self.$direction.assumed_states(interest))+;
                Ok(super::turn::any_of(self.$part.end(), exact, assumed).await)
            }

            /// Returns this side's address.
            ///
            /// # Errors
            ///
            /// This never fails. It returns a `Result` because the method of tokio's type does.
            pub fn local_addr(&self) -> std::io::Result<std::net::SocketAddr> {
                Ok(self.$part.end().local_addr())
            }

            /// Returns the peer's address.
            ///
            /// # Errors
            ///
            /// This never fails. It returns a `Result` because the method of tokio's type does.
            pub fn peer_addr(&self) -> std::io::Result<std::net::SocketAddr> {
                Ok(self.$part.end().peer_addr())
            }

            /// Returns the connection, for calls that do not wait: addresses, statistics.
            #[must_use]
            pub fn endpoint(&self) -> &crate::endpoint::Endpoint {
                self.$part.end()
            }
        }
    };
}

pub(super) use {common_methods, reading_methods, writing_methods};
