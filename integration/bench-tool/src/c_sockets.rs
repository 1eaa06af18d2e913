//! Pairs of sockets of libzmq and libnng over TCP. The program loads a library at run time, so a
//! machine needs the library only if the library is measured.

#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the calls of a C library need the same guarantees"
)]

use std::{
    ffi::{CString, c_char, c_int, c_void},
    net::SocketAddr,
    ptr,
};

use anyhow::{Context, Result, ensure};
use libloading::Library;
use toolbox::Side;

use crate::traffic::SILENCE;

/// `ZMQ_PAIR` and `ZMQ_RCVTIMEO` of zmq.h.
const ZMQ_PAIR: c_int = 0;
const ZMQ_RCVTIMEO: c_int = 27;

type ZmqNewContext = unsafe extern "C" fn() -> *mut c_void;
type ZmqNew = unsafe extern "C" fn(*mut c_void, c_int) -> *mut c_void;
type ZmqSet = unsafe extern "C" fn(*mut c_void, c_int, *const c_void, usize) -> c_int;
type ZmqAttach = unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int;
type ZmqSend = unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_int) -> c_int;
type ZmqRecv = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int) -> c_int;

/// `nng_socket` of nng.h.
#[derive(Clone, Copy)]
#[repr(C)]
struct NngSocket(u32);

type NngNew = unsafe extern "C" fn(*mut NngSocket) -> c_int;
type NngSet = unsafe extern "C" fn(NngSocket, *const c_char, i32) -> c_int;
type NngAttach = unsafe extern "C" fn(NngSocket, *const c_char, *mut c_void, c_int) -> c_int;
type NngSend = unsafe extern "C" fn(NngSocket, *const c_void, usize, c_int) -> c_int;
type NngRecv = unsafe extern "C" fn(NngSocket, *mut c_void, *mut usize, c_int) -> c_int;

/// Sends a message. Returns true if the library has accepted the message.
type Send = dyn Fn(&[u8]) -> bool;

/// Receives a message into a buffer. Returns the length of the message, or `None` after an error.
type Receive = dyn Fn(&mut [u8]) -> Option<usize>;

/// One socket of a connected pair. Only one thread uses the socket. The socket stays open until the
/// process exits.
pub(crate) struct CSocket {
    send: Box<Send>,
    receive: Box<Receive>,
    /// Memory for the longest message.
    buffer: Vec<u8>,
}

/// The maximum length of a message in bytes.
const LONGEST: usize = 8 << 20;

/// Opens a library, which stays open until the process exits.
fn open(name: &str) -> Result<&'static Library> {
    // SAFETY: the initialization of these libraries has no safety requirements.
    let library = unsafe { Library::new(name) };
    let library = library.with_context(|| format!("cannot open {name}"))?;
    Ok(Box::leak(Box::new(library)))
}

/// Looks up a function.
///
/// # Safety
///
/// The function must have the type `T`.
unsafe fn function<T: Copy>(library: &'static Library, name: &str) -> Result<T> {
    // SAFETY: the caller guarantees the type, and the library stays open.
    let symbol = unsafe { library.get::<T>(name.as_bytes()) };
    Ok(*symbol.with_context(|| format!("there is no function {name}"))?)
}

impl CSocket {
    pub(crate) fn zeromq(server: SocketAddr, side: Side) -> Result<Self> {
        let zmq = open("libzmq.so.5")?;
        let url = CString::new(format!("tcp://{server}"))?;
        let attach = match side {
            Side::Server => "zmq_bind",
            Side::Client => "zmq_connect",
        };
        let timeout = c_int::try_from(SILENCE.as_millis())?;
        let (value, len) = ((&raw const timeout).cast(), size_of_val(&timeout));
        // SAFETY: the functions have these types in zmq.h. The pointers are valid during the calls,
        // and only this thread uses the socket.
        let (socket, failed, send, recv) = unsafe {
            let context = function::<ZmqNewContext>(zmq, "zmq_ctx_new")?();
            let socket = function::<ZmqNew>(zmq, "zmq_socket")?(context, ZMQ_PAIR);
            let set = function::<ZmqSet>(zmq, "zmq_setsockopt")?(socket, ZMQ_RCVTIMEO, value, len);
            let failed = set + function::<ZmqAttach>(zmq, attach)?(socket, url.as_ptr());
            let send = function::<ZmqSend>(zmq, "zmq_send")?;
            (socket, failed, send, function::<ZmqRecv>(zmq, "zmq_recv")?)
        };
        ensure!(failed == 0, "libzmq cannot use {url:?}");
        Ok(Self {
            // SAFETY: the socket is open, and the pointer is to a message, which the call copies.
            send: Box::new(move |message| unsafe {
                send(socket, message.as_ptr().cast(), message.len(), 0) >= 0
            }),
            receive: Box::new(move |to| {
                // SAFETY: the socket is open, and the pointer is to memory of the given length.
                let came = unsafe { recv(socket, to.as_mut_ptr().cast(), to.len(), 0) };
                usize::try_from(came).ok()
            }),
            buffer: vec![0; LONGEST],
        })
    }

    pub(crate) fn nng(server: SocketAddr, side: Side) -> Result<Self> {
        let nng = open("libnng.so.1")?;
        let url = CString::new(format!("tcp://{server}"))?;
        let attach = match side {
            Side::Server => "nng_listen",
            Side::Client => "nng_dial",
        };
        let timeout = i32::try_from(SILENCE.as_millis())?;
        let mut socket = NngSocket(0);
        // SAFETY: the functions have these types in nng.h. The first call opens the socket, and the
        // pointers are valid during the calls.
        let (failed, send, recv) = unsafe {
            let opened = function::<NngNew>(nng, "nng_pair0_open")?(&raw mut socket);
            let name = c"recv-timeout".as_ptr();
            let set = function::<NngSet>(nng, "nng_socket_set_ms")?(socket, name, timeout);
            let attach = function::<NngAttach>(nng, attach)?;
            let failed = opened + set + attach(socket, url.as_ptr(), ptr::null_mut(), 0);
            let send = function::<NngSend>(nng, "nng_send")?;
            (failed, send, function::<NngRecv>(nng, "nng_recv")?)
        };
        ensure!(failed == 0, "libnng cannot use {url:?}");
        Ok(Self {
            // SAFETY: the socket is open, and the pointer is to a message, which the call copies.
            send: Box::new(move |message| unsafe {
                send(socket, message.as_ptr().cast(), message.len(), 0) == 0
            }),
            receive: Box::new(move |to| {
                let mut len = to.len();
                // SAFETY: the socket is open, and the pointer is to memory of the given length. The
                // call replaces `len` with the length of the message.
                let failed = unsafe { recv(socket, to.as_mut_ptr().cast(), &raw mut len, 0) };
                (failed == 0).then_some(len)
            }),
            buffer: vec![0; LONGEST],
        })
    }

    pub(crate) fn send(&mut self, message: &[u8]) -> Result<()> {
        ensure!((self.send)(message), "cannot send {} bytes", message.len());
        Ok(())
    }

    /// Receives a message, and returns its length.
    pub(crate) fn receive(&mut self) -> Result<usize> {
        let len = (self.receive)(&mut self.buffer).context("cannot receive a message")?;
        Ok(len.min(self.buffer.len()))
    }

    pub(crate) fn send_back(&mut self) -> Result<()> {
        let len = self.receive()?;
        let sent = (self.send)(&self.buffer[..len]);
        ensure!(sent, "cannot send {len} bytes");
        Ok(())
    }
}
