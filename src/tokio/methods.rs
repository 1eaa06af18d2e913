//! Methods and trait implementations that a stream, its owned halves and its borrowed halves share.
//! Each of these types has a field `read`, a field `write`, or both.

/// Defines the methods of a type that can read.
macro_rules! reading_methods {
    ($type:ty) => {
        /// Non-blocking reads, and methods that wait without reading.
        impl $type {
            /// Copies the next bytes without consuming them. If no bytes have arrived, waits as a
            /// read does.
            ///
            /// May copy fewer bytes than have arrived. Returns the number of bytes, which is 0 at
            /// the end of the stream. Dropping the future consumes nothing.
            ///
            /// # Errors
            ///
            /// The errors of a read.
            pub async fn peek(&self, buf: &mut [u8]) -> std::io::Result<usize> {
                self.read.peek(buf).await
            }

            /// Peeks like [`peek`](Self::peek), for use in a `poll` function.
            ///
            /// Only one task at a time can wait in `poll_` methods that read or peek. A later call
            /// replaces the waker of an earlier call.
            ///
            /// # Errors
            ///
            /// The errors of a read.
            pub fn poll_peek(
                &self,
                cx: &mut std::task::Context<'_>,
                buf: &mut ::tokio::io::ReadBuf<'_>,
            ) -> std::task::Poll<std::io::Result<usize>> {
                self.read.poll_peek(cx, buf)
            }

            /// Waits until a [`try_read`](Self::try_read) may return bytes, the end of the stream,
            /// or an error.
            ///
            /// Several tasks may wait. If the last read returned bytes or the end of the stream, or
            /// if the stream is newly accepted, this method assumes that the stream is readable,
            /// and returns immediately. If this assumption is wrong, `try_read` fails with
            /// [`WouldBlock`](std::io::ErrorKind::WouldBlock), and the next call of this method
            /// waits.
            ///
            /// # Errors
            ///
            /// Never fails. It returns a `Result` for compatibility with tokio's type.
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

            /// Waits like [`readable`](Self::readable), for use in a `poll` function.
            ///
            /// Only one task at a time can wait in `poll_` methods that read or peek. A later call
            /// replaces the waker of an earlier call.
            ///
            /// # Errors
            ///
            /// Never fails. It returns a `Result` for compatibility with tokio's type.
            pub fn poll_read_ready(
                &self,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                self.read.poll_read_ready(cx)
            }

            /// Reads bytes that have arrived, without waiting. Returns 0 at the end of the stream.
            ///
            /// # Errors
            ///
            /// [`WouldBlock`](std::io::ErrorKind::WouldBlock) if no bytes have arrived, and the
            /// errors of a read.
            pub fn try_read(&self, buf: &mut [u8]) -> std::io::Result<usize> {
                self.read.try_read(buf)
            }

            /// Reads like [`try_read`](Self::try_read), into several buffers in order.
            ///
            /// # Errors
            ///
            /// The errors of [`try_read`](Self::try_read).
            pub fn try_read_vectored(
                &self,
                bufs: &mut [std::io::IoSliceMut<'_>],
            ) -> std::io::Result<usize> {
                self.read.try_read_vectored(bufs)
            }

            /// Reads like [`try_read`](Self::try_read), and appends the bytes to the buffer.
            ///
            /// # Errors
            ///
            /// The errors of [`try_read`](Self::try_read).
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
            /// Returns unread bytes without copying them out of the received message.
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

/// Defines the methods of a type that can write.
macro_rules! writing_methods {
    ($type:ty) => {
        /// Non-blocking writes, and methods that wait without writing.
        impl $type {
            /// Waits until a [`try_write`](Self::try_write) may accept some bytes, or may fail.
            ///
            /// Several tasks may wait. This method waits only if the last write found the peer's
            /// window full. In all other cases it assumes that the window is not full, and
            /// returns immediately. If this assumption is wrong, `try_write` fails with
            /// [`WouldBlock`](std::io::ErrorKind::WouldBlock), and the next call of this method
            /// waits.
            ///
            /// # Errors
            ///
            /// Never fails. It returns a `Result` for compatibility with tokio's type.
            pub async fn writable(&self) -> std::io::Result<()> {
                self.write.writable().await;
                Ok(())
            }

            /// Waits like [`writable`](Self::writable), for use in a `poll` function.
            ///
            /// Only one task at a time can wait in `poll_` methods that write. A later call
            /// replaces the waker of an earlier call.
            ///
            /// # Errors
            ///
            /// Never fails. It returns a `Result` for compatibility with tokio's type.
            pub fn poll_write_ready(
                &self,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                self.write.poll_write_ready(cx)
            }

            /// Writes bytes from the start of `buf`, without waiting. Returns the number of bytes
            /// written, which may be less than the length of `buf`.
            ///
            /// # Errors
            ///
            /// [`WouldBlock`](std::io::ErrorKind::WouldBlock) if the peer's window is full, and
            /// the errors of a write.
            pub fn try_write(&self, buf: &[u8]) -> std::io::Result<usize> {
                self.write.try_write(&[std::io::IoSlice::new(buf)])
            }

            /// Writes like [`try_write`](Self::try_write), from several buffers in order.
            ///
            /// # Errors
            ///
            /// The errors of [`try_write`](Self::try_write).
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

            /// Does nothing, because written bytes are sent as soon as the peer's window is not
            /// full.
            fn poll_flush(
                self: std::pin::Pin<&mut Self>,
                _: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                std::task::Poll::Ready(Ok(()))
            }

            /// Shuts down the write direction: the peer reads all bytes that were written, and then
            /// reaches the end of the stream.
            fn poll_shutdown(
                self: std::pin::Pin<&mut Self>,
                _: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                std::task::Poll::Ready(self.write.shut_down())
            }
        }
    };
}

/// Defines the methods that a stream and its halves share. `$part` is a field whose method `end`
/// returns the `StreamEnd`. The method `ready` combines the states of the fields `$direction`.
macro_rules! common_methods {
    ($type:ty, $part:ident, $($direction:ident),+) => {
        /// Waits for readiness, and returns information about the connection.
        impl $type {
            /// Waits until at least one state in `interest` applies to the stream. Returns all
            /// states in `interest` that apply.
            ///
            /// Use this method in a task that both reads and writes, and combine the interests with
            /// [`Interest::add`]. If a direction has ended, its states include [`READ_CLOSED`] or
            /// [`WRITE_CLOSED`]. A returned state may be outdated. In this case the next read or
            /// write fails with [`WouldBlock`](std::io::ErrorKind::WouldBlock), and later calls of
            /// `ready` do not return the state until it actually applies.
            ///
            /// [`Interest::add`]: ::tokio::io::Interest::add
            /// [`READ_CLOSED`]: ::tokio::io::Ready::READ_CLOSED
            /// [`WRITE_CLOSED`]: ::tokio::io::Ready::WRITE_CLOSED
            ///
            /// # Errors
            ///
            /// Never fails. It returns a `Result` for compatibility with tokio's type.
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
            /// Never fails. It returns a `Result` for compatibility with tokio's type.
            pub fn local_addr(&self) -> std::io::Result<std::net::SocketAddr> {
                Ok(self.$part.end().local_addr())
            }

            /// Returns the peer's address.
            ///
            /// # Errors
            ///
            /// Never fails. It returns a `Result` for compatibility with tokio's type.
            pub fn peer_addr(&self) -> std::io::Result<std::net::SocketAddr> {
                Ok(self.$part.end().peer_addr())
            }

            /// Returns the endpoint, for methods that do not wait, such as statistics.
            #[must_use]
            pub fn endpoint(&self) -> &crate::endpoint::Endpoint {
                self.$part.end()
            }
        }
    };
}

pub(super) use {common_methods, reading_methods, writing_methods};
