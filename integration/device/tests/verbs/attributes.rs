//! Compares the attributes of the device with the kernel's values in sysfs.

use std::{fs, net::Ipv6Addr, path::PathBuf};

use rdmsg::verbs::{
    AtomicCap, DeviceList, Gid, GidType, LinkLayer, Mtu, NodeType, PortState, QpState,
    TransportType,
};
use toolbox::Lab;

use crate::pair::{EINVAL, PORT, Pair, gid, open};

fn sysfs(path: &str) -> Option<String> {
    let file = PathBuf::from("/sys/class/infiniband")
        .join(Lab::get().device)
        .join(path);
    fs::read_to_string(file)
        .ok()
        .map(|text| text.trim().to_owned())
}

#[test]
fn the_list_names_the_device() {
    let list = DeviceList::new().unwrap();
    let lab = Lab::get();
    assert_eq!(
        list.len(),
        fs::read_dir("/sys/class/infiniband").unwrap().count()
    );
    let device = list.find(&lab.device).unwrap().clone();
    assert!(list.find("no such device").is_none());
    drop(list);
    assert_eq!(device.name(), lab.device);
    assert_eq!(
        (device.node_type(), device.transport_type()),
        (NodeType::CA, TransportType::IB)
    );

    let context = device.open().unwrap();
    let guid = context.guid();
    assert_eq!(guid, device.guid());
    drop(device);
    assert_eq!(context.device_name(), lab.device);
    assert_eq!(context.query_device().unwrap().node_guid(), guid);
    let groups =
        [guid >> 48, guid >> 32, guid >> 16, guid].map(|group| format!("{:04x}", group & 0xffff));
    assert_eq!(Some(groups.join(":")), sysfs("node_guid"));
}

#[test]
fn the_device_has_what_the_tests_need() {
    let attr = open().query_device().unwrap();
    assert!(
        attr.max_qp() > 1000 && attr.max_cqe() >= 4096 && attr.max_qp_wr() >= 1024,
        "{attr:?}"
    );
    assert!(
        attr.max_mr_size() > 1 << 30 && attr.max_srq() > 0 && attr.max_sge() >= 3,
        "{attr:?}"
    );
    assert_eq!(attr.phys_port_cnt(), 1);
    assert_eq!(attr.atomic_cap(), AtomicCap::HCA);
}

#[test]
fn the_port_is_as_sysfs_says() {
    let context = open();
    let port = context.query_port(PORT).unwrap();
    assert_eq!(port.state, PortState::ACTIVE);
    assert_eq!(
        sysfs("ports/1/state").unwrap(),
        format!("{}: {}", port.state.raw(), port.state)
    );
    assert_eq!(port.link_layer, LinkLayer::ETHERNET);
    assert_eq!(port.lid, 0);
    assert!(
        port.active_mtu.bytes() >= Some(1024) && port.max_mtu == Mtu::MTU_4096,
        "{port:?}"
    );
    assert!(port.max_msg_sz >= 1 << 20, "{port:?}");
    assert_eq!(usize::from(port.pkey_tbl_len()), count("ports/1/pkeys"));
    assert_eq!(port.gid_tbl_len() as usize, count("ports/1/gids"));
    assert_eq!(context.query_pkey(PORT, 0), Ok(0xffff));
    assert_eq!(context.query_port(9).unwrap_err().errno, EINVAL);
}

fn count(path: &str) -> usize {
    let dir = PathBuf::from("/sys/class/infiniband")
        .join(Lab::get().device)
        .join(path);
    fs::read_dir(dir).unwrap().count()
}

#[test]
fn the_gid_table_is_as_sysfs_says() {
    let context = open();
    let len = context.query_port(PORT).unwrap().gid_tbl_len();
    let mut table = context.gid_table(PORT).unwrap().into_iter();
    for index in 0..len {
        let text = sysfs(&format!("ports/1/gids/{index}"));
        let text = text.filter(|text| {
            text.parse::<Ipv6Addr>()
                .is_ok_and(|gid| !gid.is_unspecified())
        });
        let Some(text) = text else { continue };
        let entry = table.next().unwrap();
        assert_eq!((entry.gid_index, entry.port_num), (index, u32::from(PORT)));
        assert_eq!(entry.gid, Gid::from(text.parse::<Ipv6Addr>().unwrap()));
        let kind = sysfs(&format!("ports/1/gid_attrs/types/{index}")).unwrap();
        assert_eq!(entry.gid_type, GidType::ROCE_V2);
        assert_eq!(kind, "RoCE v2");
        let netdev = sysfs(&format!("ports/1/gid_attrs/ndevs/{index}")).unwrap();
        let ifindex = fs::read_to_string(format!("/sys/class/net/{netdev}/ifindex")).unwrap();
        assert_eq!(entry.ndev_ifindex.to_string(), ifindex.trim());
        assert_eq!(context.query_gid(PORT, index), Ok(entry));
    }
    assert_eq!(table.next(), None);
    assert!(
        context.query_gid(PORT, len - 1).is_err(),
        "the last entry must be empty"
    );
    assert!(context.query_gid(PORT, len).is_err());
    assert!(context.gid_table(9).is_err());
}

#[test]
fn a_queue_pair_has_the_attributes_that_it_was_given() {
    let pair = Pair::new();
    let attr = pair.a.qp.query().unwrap();
    assert_eq!(attr.qp_state, Some(QpState::RTS));
    assert_eq!(attr.dest_qp_num, Some(pair.b.qp.qp_num()));
    assert_eq!(
        (attr.timeout, attr.retry_cnt, attr.rnr_retry),
        (Some(14), Some(7), Some(7))
    );
    assert_eq!((attr.min_rnr_timer, attr.port_num), (Some(1), Some(PORT)));
    assert_eq!(
        attr.path_mtu,
        Some(pair.context.query_port(PORT).unwrap().active_mtu)
    );
    assert_eq!(
        attr.ah_attr.unwrap().grh.unwrap().dgid,
        gid(&pair.context).gid
    );
    pair.a.qp.set_min_rnr_timer(12).unwrap();
    assert_eq!(pair.a.qp.query().unwrap().min_rnr_timer, Some(12));
    let cap = pair.a.qp.cap();
    assert!(
        cap.max_send_wr >= 8 && cap.max_recv_wr >= 8 && cap.max_inline_data >= 64,
        "{cap:?}"
    );
}
