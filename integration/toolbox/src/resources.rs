//! What exists on a device, asked of the kernel itself: `rdma resource show` says the same, but
//! starting a program takes an emulated machine a tenth of a second, and tests ask all the time.
//!
//! See `rdma_netlink.h` of the kernel and netlink(7).

use std::{
    io::{Read, Write},
    os::fd::OwnedFd,
};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

/// `RDMA_NLDEV_CMD_RES_GET` of the clients' kind `RDMA_NL_NLDEV`.
const RES_GET: u16 = 5 << 10 | 9;
/// `NLM_F_REQUEST | NLM_F_DUMP`: what all devices have.
const DUMP: u16 = 0x301;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Of `struct nlmsghdr`.
const HEADER_LEN: usize = 16;
/// The bits of an attribute's type that say what is in it.
const NLA_TYPE_MASK: u16 = 0x3fff;
const DEV_NAME: u16 = 2;
const RES_SUMMARY: u16 = 15;
const RES_SUMMARY_ENTRY_NAME: u16 = 17;
const RES_SUMMARY_ENTRY_CURR: u16 = 18;

/// The numbers of objects on the device: "pd 1 cq 2 qp 2 …".
pub(crate) fn resources(device: &str) -> Result<String> {
    let answer = dump(RES_GET).context("RDMA's netlink does not say what exists")?;
    for message in &answer {
        if text(find(message, DEV_NAME)?)? == device {
            return summary(find(message, RES_SUMMARY)?);
        }
    }
    bail!("RDMA's netlink knows no device {device}")
}

fn summary(entries: &[u8]) -> Result<String> {
    let counts = attributes(entries).map(|entry| {
        let (_, entry) = entry?;
        let count = find(entry, RES_SUMMARY_ENTRY_CURR)?;
        let count = u64::from_ne_bytes(count.try_into()?);
        Ok(format!(
            "{} {count}",
            text(find(entry, RES_SUMMARY_ENTRY_NAME)?)?
        ))
    });
    let counts: Vec<_> = counts.collect::<Result<_>>()?;
    Ok(counts.join(" "))
}

/// The attributes of each message with which the kernel answers.
fn dump(command: u16) -> Result<Vec<Vec<u8>>> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket: OwnedFd = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        flags,
        SockProtocol::NetlinkRDMA,
    )?;
    let mut socket = std::fs::File::from(socket);
    let mut request = Vec::with_capacity(HEADER_LEN);
    request.extend((HEADER_LEN as u32).to_ne_bytes());
    request.extend(command.to_ne_bytes());
    request.extend(DUMP.to_ne_bytes());
    request.extend([0; 8]);
    socket.write_all(&request)?;
    let mut messages = Vec::new();
    let mut datagram = vec![0; 64 << 10];
    loop {
        let len = socket.read(&mut datagram)?;
        let mut rest = &datagram[..len];
        while !rest.is_empty() {
            ensure!(rest.len() >= HEADER_LEN, "a message without a header");
            let len = u32::from_ne_bytes(rest[..4].try_into()?) as usize;
            let kind = u16::from_ne_bytes(rest[4..6].try_into()?);
            ensure!((HEADER_LEN..=rest.len()).contains(&len), "a torn message");
            match kind {
                NLMSG_DONE => return Ok(messages),
                NLMSG_ERROR => bail!("an error: {:?}", &rest[HEADER_LEN..len]),
                _ => messages.push(rest[HEADER_LEN..len].to_vec()),
            }
            rest = &rest[aligned(len).min(rest.len())..];
        }
    }
}

/// Of `struct nlattr`: its length with this header, its type, and what is in it.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = Result<(u16, &[u8])>> {
    std::iter::from_fn(move || {
        let (len, rest) = bytes.split_first_chunk()?;
        let len = usize::from(u16::from_ne_bytes(*len));
        let Some((kind, _)) = rest
            .split_first_chunk()
            .filter(|_| (4..=bytes.len()).contains(&len))
        else {
            bytes = &[];
            return Some(Err(anyhow::anyhow!("a torn attribute")));
        };
        let kind = u16::from_ne_bytes(*kind) & NLA_TYPE_MASK;
        let content = &bytes[4..len];
        bytes = &bytes[aligned(len).min(bytes.len())..];
        Some(Ok((kind, content)))
    })
}

fn find(bytes: &[u8], wanted: u16) -> Result<&[u8]> {
    for attribute in attributes(bytes) {
        let (kind, content) = attribute?;
        if kind == wanted {
            return Ok(content);
        }
    }
    bail!("attribute {wanted} is missing")
}

fn text(bytes: &[u8]) -> Result<&str> {
    let text = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    Ok(std::str::from_utf8(text)?)
}

fn aligned(len: usize) -> usize {
    len.next_multiple_of(4)
}
