use ::tonic::transport::server::{Connected, TcpConnectInfo};

use crate::tokio::stream::Stream;

/// Lets `Server::serve_with_incoming` (feature `tonic`) serve streams from
/// [`StreamListener::into_incoming`](crate::tokio::StreamListener::into_incoming).
///
/// `Request::remote_addr` and `Request::local_addr` return the connection's addresses, as they do
/// for tokio's `TcpStream`.
///
/// # Examples
///
/// ```
/// use tonic::{Request, Response, Status};
///
/// fn greet(request: &Request<String>) -> Result<Response<String>, Status> {
///     let peer = request.remote_addr();
///     let peer = peer.ok_or_else(|| Status::internal("the peer's address is unknown"))?;
///     Ok(Response::new(format!("hello, {peer}")))
/// }
/// # assert!(greet(&Request::new(String::new())).is_err());
/// ```
impl Connected for Stream {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        TcpConnectInfo {
            local_addr: self.local_addr().ok(),
            remote_addr: self.peer_addr().ok(),
        }
    }
}
