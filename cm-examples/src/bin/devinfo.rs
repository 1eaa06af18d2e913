//! Lists RDMA devices with their ports, addresses and limits: as text in the format of the C
//! program `ibv_devinfo`, or as JSON.
//!
//! The program opens each device, and queries its capabilities, the state of each port, and the
//! port's table of *global identifiers* (GIDs). On RoCE, the table contains each address of the
//! network interface once for each RoCE version. A connection selects its local GID by the index in
//! this table. Therefore RDMA programs often have an option for the index.

use std::process::ExitCode;

use clap::Parser;
use cm_examples::{Result, end, init_debug};
use rdmsg::verbs::{Context, DeviceAttr, DeviceList, GidType, LinkLayer, TransportType};
use serde_json::{Map, Value, json};

/// Show RDMA devices, their ports, addresses and limits
#[derive(Parser)]
struct Options {
    /// Show only this device [default: all]
    #[arg(short = 'd', long, value_name = "NAME")]
    ib_dev: Option<String>,
    /// Show only this port [default: all]
    #[arg(short = 'i', long, value_parser = clap::value_parser!(u8).range(1..))]
    ib_port: Option<u8>,
    /// Show only the names of the devices
    #[arg(short, long)]
    list: bool,
    /// Also print the limits of devices and ports
    #[arg(short, long)]
    verbose: bool,
    /// Print all data as a JSON array of devices
    #[arg(short, long)]
    json: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    init_debug(false);
    end("devinfo", run(&options))
}

fn run(options: &Options) -> Result<()> {
    let devices = DeviceList::new()?;
    let is_selected = |name: &str| options.ib_dev.as_deref().is_none_or(|only| only == name);
    let found: Vec<_> = devices
        .iter()
        .filter(|device| is_selected(&device.name()))
        .collect();
    if let (Some(name), true) = (&options.ib_dev, found.is_empty()) {
        return Err(format!("there is no device {name}; `devinfo -l` lists all").into());
    }
    if options.list {
        let names: Vec<_> = found.iter().map(|device| device.name()).collect();
        if options.json {
            println!("{}", json!(names));
        } else {
            let plural = if names.len() == 1 { "" } else { "s" };
            println!("{} HCA{plural} found:", names.len());
            names.iter().for_each(|name| println!("\t{name}"));
        }
        return Ok(());
    }
    if found.is_empty() && !options.json {
        return Err("there is no RDMA device; see `rdma link`".into());
    }
    let mut all = Vec::new();
    for device in found {
        let context = device.open()?;
        let name = context.device_name();
        let attr = context.query_device()?;
        let ports = match options.ib_port {
            Some(port) => port..=port,
            None => 1..=attr.phys_port_cnt(),
        };
        let mut sheet = device_sheet(&context, &attr, options.verbose)?;
        let mut lines = vec![format!("hca_id:\t{name}")];
        lines.extend(sheet.lines(8, 40));
        let mut list = Vec::new();
        for port in ports {
            let sheet = port_sheet(&context, port, options.verbose)
                .map_err(|error| format!("port {port} of {name}: {error}"))?;
            lines.push(format!("\t\tport:\t{port}"));
            lines.extend(sheet.lines(24, 48));
            lines.push(String::new());
            list.push(Value::Object(sheet.object));
        }
        sheet.object.insert("ports".into(), list.into());
        all.push(sheet.object);
        if !options.json {
            lines.iter().for_each(|line| println!("{line}"));
        }
    }
    if options.json {
        println!("{:#}", json!(all));
    }
    Ok(())
}

/// The attributes of a device or port, as lines of text and as a JSON object.
struct Sheet {
    verbose: bool,
    lines: Vec<(String, String)>,
    object: Map<String, Value>,
}

impl Sheet {
    fn new(verbose: bool, id: &str, value: Value) -> Self {
        Self {
            verbose,
            lines: Vec::new(),
            object: Map::from_iter([(id.into(), value)]),
        }
    }

    /// Adds an attribute to the text and to the JSON object.
    fn add(&mut self, key: &str, text: impl ToString, value: impl Into<Value>) {
        self.lines.push((key.into(), text.to_string()));
        self.object.insert(key.into(), value.into());
    }

    /// Adds an attribute to the JSON object and, with `--verbose`, to the text.
    fn detail(&mut self, key: &str, text: impl ToString, value: impl Into<Value>) {
        if self.verbose {
            self.lines.push((key.into(), text.to_string()));
        }
        self.object.insert(key.into(), value.into());
    }

    /// Adds a numeric attribute to the JSON object and, with `--verbose`, to the text.
    fn limit(&mut self, key: &str, number: impl Into<u64>) {
        let number = number.into();
        self.detail(key, number, number);
    }

    /// Returns the lines of text. Keys start at the column `indent`, and values at the column
    /// `column`.
    fn lines(&self, indent: usize, column: usize) -> impl Iterator<Item = String> {
        self.lines.iter().map(move |(key, text)| {
            let gap = column.saturating_sub(indent + key.len() + 1);
            let (before, between) = ("\t".repeat(indent / 8), "\t".repeat(gap.div_ceil(8).max(1)));
            format!("{before}{key}:{between}{text}")
        })
    }
}

fn device_sheet(context: &Context, attr: &DeviceAttr, verbose: bool) -> Result<Sheet> {
    let mut sheet = Sheet::new(verbose, "hca_id", context.device_name().into());
    let transport = context.transport_type();
    let name = match transport {
        TransportType::IB => "InfiniBand".into(),
        TransportType::IWARP => "iWARP".into(),
        other => other.to_string(),
    };
    sheet.add("transport", format!("{name} ({})", transport.raw()), name);
    sheet.add("fw_ver", attr.fw_ver(), attr.fw_ver());
    let (node, board) = (guid(attr.node_guid()), guid(attr.sys_image_guid()));
    sheet.add("node_guid", &node, node.as_str());
    sheet.add("sys_image_guid", &board, board.as_str());
    sheet.add(
        "vendor_id",
        format!("0x{:04x}", attr.vendor_id()),
        attr.vendor_id(),
    );
    sheet.add(
        "vendor_part_id",
        attr.vendor_part_id(),
        attr.vendor_part_id(),
    );
    sheet.add("hw_ver", format!("0x{:X}", attr.hw_ver()), attr.hw_ver());
    sheet.add("phys_port_cnt", attr.phys_port_cnt(), attr.phys_port_cnt());
    let bytes = attr.max_mr_size();
    sheet.detail("max_mr_size", format!("0x{bytes:x}"), bytes);
    let pages = attr.page_size_cap();
    sheet.detail("page_size_cap", format!("0x{pages:x}"), pages);
    sheet.limit("max_qp", attr.max_qp());
    sheet.limit("max_qp_wr", attr.max_qp_wr());
    let flags = attr.device_cap_flags();
    let names: Vec<_> = flags.to_string().split(" | ").map(Value::from).collect();
    sheet.detail("device_cap_flags", format!("0x{:08x}", flags.bits()), names);
    sheet.limit("max_sge", attr.max_sge());
    sheet.limit("max_sge_rd", attr.max_sge_rd());
    sheet.limit("max_cq", attr.max_cq());
    sheet.limit("max_cqe", attr.max_cqe());
    sheet.limit("max_mr", attr.max_mr());
    sheet.limit("max_pd", attr.max_pd());
    sheet.limit("max_qp_rd_atom", attr.max_qp_rd_atom());
    sheet.limit("max_res_rd_atom", attr.max_res_rd_atom());
    sheet.limit("max_qp_init_rd_atom", attr.max_qp_init_rd_atom());
    let atomic = attr.atomic_cap();
    let text = format!("ATOMIC_{atomic} ({})", atomic.raw());
    sheet.detail("atomic_cap", text, atomic.to_string());
    sheet.limit("max_mcast_grp", attr.max_mcast_grp());
    sheet.limit("max_mcast_qp_attach", attr.max_mcast_qp_attach());
    sheet.limit("max_ah", attr.max_ah());
    sheet.limit("max_srq", attr.max_srq());
    sheet.limit("max_srq_wr", attr.max_srq_wr());
    sheet.limit("max_srq_sge", attr.max_srq_sge());
    sheet.limit("max_pkeys", attr.max_pkeys());
    sheet.limit("local_ca_ack_delay", attr.local_ca_ack_delay());
    let more = context.query_device_ex()?;
    let (odp, rc) = (more.odp_caps().to_string(), more.rc_odp_caps().to_string());
    sheet.detail("odp_caps", &odp, odp.as_str());
    sheet.detail("rc_odp_caps", &rc, rc.as_str());
    let mask = more.completion_timestamp_mask();
    sheet.detail("completion_timestamp_mask", format!("0x{mask:016x}"), mask);
    sheet.limit("hca_core_clock", more.hca_core_clock());
    sheet.limit("max_dm_size", more.max_dm_size());
    sheet.limit("num_comp_vectors", context.num_comp_vectors());
    Ok(sheet)
}

fn port_sheet(context: &Context, port: u8, verbose: bool) -> Result<Sheet> {
    let attr = context.query_port(port)?;
    let mut sheet = Sheet::new(verbose, "port", port.into());
    let state = format!("PORT_{}", attr.state);
    sheet.add("state", format!("{state} ({})", attr.state.raw()), state);
    for (key, mtu) in [("max_mtu", attr.max_mtu), ("active_mtu", attr.active_mtu)] {
        let bytes = mtu.bytes().unwrap_or(0);
        sheet.add(key, format!("{bytes} ({})", mtu.raw()), bytes);
    }
    sheet.add("sm_lid", attr.sm_lid, attr.sm_lid);
    sheet.add("port_lid", attr.lid, attr.lid);
    sheet.add("port_lmc", format!("0x{:02x}", attr.lmc), attr.lmc);
    let link = match attr.link_layer {
        LinkLayer::UNSPECIFIED | LinkLayer::INFINIBAND => "InfiniBand".into(),
        LinkLayer::ETHERNET => "Ethernet".into(),
        other => other.to_string(),
    };
    sheet.add("link_layer", &link, link.as_str());
    let bytes = attr.max_msg_sz;
    sheet.detail("max_msg_sz", format!("0x{bytes:x}"), bytes);
    let flags = attr.port_cap_flags();
    sheet.detail("port_cap_flags", format!("0x{flags:08x}"), flags);
    sheet.limit("pkey_tbl_len", attr.pkey_tbl_len());
    sheet.limit("gid_tbl_len", attr.gid_tbl_len());
    let width = match attr.active_width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    let text = format!("{width}X ({})", attr.active_width);
    sheet.detail("active_width", text, width);
    let speed = match attr.active_speed {
        1 => 2.5,
        2 => 5.0,
        4 | 8 => 10.0,
        16 => 14.0,
        32 => 25.0,
        64 => 50.0,
        128 => 100.0,
        _ => 0.0,
    };
    let text = format!("{speed:.1} Gbps ({})", attr.active_speed);
    sheet.detail("active_speed", text, speed);
    let mut gids = Vec::new();
    for entry in context.gid_table(port)? {
        let kind = match entry.gid_type {
            GidType::IB => "IB",
            GidType::ROCE_V1 => "RoCE v1",
            GidType::ROCE_V2 => "RoCE v2",
            _ => "unknown",
        };
        let (index, gid) = (entry.gid_index, entry.gid.to_string());
        let line = (format!("GID[{index:>3}]"), format!("{gid}, {kind}"));
        sheet.lines.push(line);
        let ifindex = entry.ndev_ifindex;
        gids.push(json!({"index": index, "gid": gid, "type": kind, "ndev_ifindex": ifindex}));
    }
    sheet.object.insert("gids".into(), gids.into());
    Ok(sheet)
}

/// Formats a GUID as four groups of hexadecimal digits.
fn guid(guid: u64) -> String {
    let group = |shift: u32| (guid >> shift) & 0xffff;
    let groups = [48, 32, 16, 0].map(|shift| format!("{:04x}", group(shift)));
    groups.join(":")
}
