//! Counts the objects of an RDMA device through netlink. `rdma resource show` prints the same
//! counts. This module does not run that program, because tests count often, and a program starts
//! slowly in an emulated guest.
//!
//! See `rdma_netlink.h` of the kernel, and netlink(7).

use std::os::fd::AsRawFd;

use anyhow::{Context, Result, bail};
use nix::{
    errno::Errno,
    sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket},
};

/// The type of the netlink request: the command `RDMA_NLDEV_CMD_RES_GET` of the client
/// `RDMA_NL_NLDEV`.
const RES_GET: u16 = 5 << 10 | 9;
/// The flags `NLM_F_REQUEST | NLM_F_DUMP`, which request the objects of all devices.
const DUMP: u16 = 0x301;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// The length of `struct nlmsghdr` in bytes.
const HEADER_LEN: usize = 16;
/// A mask that removes the flags from an attribute's type.
const NLA_TYPE_MASK: u16 = 0x3fff;
const DEV_NAME: u16 = 2;
const RES_SUMMARY: u16 = 15;
const RES_SUMMARY_ENTRY_NAME: u16 = 17;
const RES_SUMMARY_ENTRY_CURR: u16 = 18;

/// Returns the number of objects of each kind on the device, for example "pd 1 cq 2 qp 2 …".
pub(crate) fn resources(device: &str) -> Result<String> {
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRDMA,
    )?;
    let mut request = [0; HEADER_LEN];
    request[..4].copy_from_slice(&(HEADER_LEN as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&RES_GET.to_ne_bytes());
    request[6..8].copy_from_slice(&DUMP.to_ne_bytes());
    send(socket.as_raw_fd(), &request, MsgFlags::empty())?;
    let mut datagram = vec![0; 64 << 10];
    loop {
        let len = recv(socket.as_raw_fd(), &mut datagram, MsgFlags::empty())?;
        let mut rest = &datagram[..len];
        while let Some([l0, l1, l2, l3, k0, k1, ..]) = rest.first_chunk::<HEADER_LEN>() {
            let len = u32::from_ne_bytes([*l0, *l1, *l2, *l3]) as usize;
            let content = rest.get(HEADER_LEN..len).context("truncated message")?;
            match u16::from_ne_bytes([*k0, *k1]) {
                NLMSG_DONE => bail!("netlink does not list the RDMA device {device}"),
                NLMSG_ERROR => {
                    // The first field of `struct nlmsgerr` is the negated errno.
                    let errno = content.first_chunk().context("truncated error")?;
                    bail!(Errno::from_raw(-i32::from_ne_bytes(*errno)))
                }
                _ if text(find(content, DEV_NAME)?)? == device => {
                    return summary(find(content, RES_SUMMARY)?);
                }
                _ => rest = rest.get(aligned(len)..).unwrap_or_default(),
            }
        }
    }
}

fn summary(entries: &[u8]) -> Result<String> {
    let mut counts = Vec::new();
    for (_, entry) in attributes(entries)? {
        let name = text(find(entry, RES_SUMMARY_ENTRY_NAME)?)?;
        let count = u64::from_ne_bytes(find(entry, RES_SUMMARY_ENTRY_CURR)?.try_into()?);
        counts.push(format!("{name} {count}"));
    }
    Ok(counts.join(" "))
}

/// Returns the payload of the first `struct nlattr` of the type `wanted` in `bytes`.
fn find(bytes: &[u8], wanted: u16) -> Result<&[u8]> {
    let all = attributes(bytes)?;
    let found = all.into_iter().find(|(kind, _)| *kind == wanted);
    Ok(found
        .with_context(|| format!("attribute {wanted} is missing"))?
        .1)
}

/// Returns the type and the payload of each `struct nlattr` in `bytes`.
fn attributes(mut bytes: &[u8]) -> Result<Vec<(u16, &[u8])>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let number = |at| Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
        let len = usize::from(number(0).context("truncated attribute")?);
        let content = bytes.get(4..len).context("truncated attribute")?;
        all.push((number(2).unwrap_or(0) & NLA_TYPE_MASK, content));
        bytes = bytes.get(aligned(len)..).unwrap_or_default();
    }
    Ok(all)
}

fn text(bytes: &[u8]) -> Result<&str> {
    let text = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    Ok(std::str::from_utf8(text)?)
}

fn aligned(len: usize) -> usize {
    len.next_multiple_of(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, content: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend((4 + content.len() as u16).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(content);
        bytes.resize(aligned(bytes.len()), 0);
        bytes
    }

    #[test]
    fn a_summary_is_read_and_a_torn_one_is_an_error() {
        let entry = |name: &[u8], count: u64| {
            let name = attribute(RES_SUMMARY_ENTRY_NAME, name);
            let count = attribute(RES_SUMMARY_ENTRY_CURR, &count.to_ne_bytes());
            // The flag `NLA_F_NESTED` (bit 15) means that the payload consists of attributes.
            attribute(1 << 15 | 16, &[name, count].concat())
        };
        let entries = [entry(b"pd\0", 1), entry(b"cm_id\0", 20)].concat();
        assert_eq!(summary(&entries).unwrap(), "pd 1 cm_id 20");
        for len in 1..entries.len() {
            if len != entry(b"pd\0", 1).len() {
                summary(&entries[..len]).unwrap_err();
            }
        }
    }
}
