//! Work requests, completions and events, and the structures that they contain.

use libc::{c_int, c_uint, c_void};

use super::{constants::*, define::types, objects::*};

types! {
    struct ibv_gid_global_t { subnet_prefix: u64, interface_id: u64 }

    union ibv_gid { raw: [u8; 16], global: ibv_gid_global_t }

    struct ibv_global_route {
        dgid: ibv_gid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }

    struct ibv_ah_attr {
        grh: ibv_global_route,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }

    struct ibv_grh {
        version_tclass_flow: u32,
        paylen: u16,
        next_hdr: u8,
        hop_limit: u8,
        sgid: ibv_gid,
        dgid: ibv_gid,
    }

    struct ibv_sge { addr: u64, length: u32, lkey: u32 }

    struct ibv_recv_wr {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }

    union imm_data_invalidated_rkey_union_t { imm_data: u32, invalidated_rkey: u32 }

    struct rdma_t { remote_addr: u64, rkey: u32 }

    struct atomic_t { remote_addr: u64, compare_add: u64, swap: u64, rkey: u32 }

    struct ud_t { ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32 }

    union wr_t { rdma: rdma_t, atomic: atomic_t, ud: ud_t }

    struct xrc_t { remote_srqn: u32 }

    union qp_type_t { xrc: xrc_t }

    struct ibv_mw_bind_info { mr: *mut ibv_mr, addr: u64, length: u64, mw_access_flags: c_uint }

    struct bind_mw_t { mw: *mut ibv_mw, rkey: u32, bind_info: ibv_mw_bind_info }

    struct tso_t { hdr: *mut c_void, hdr_sz: u16, mss: u16 }

    union bind_mw_tso_union_t { bind_mw: bind_mw_t, tso: tso_t }

    struct ibv_send_wr {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: ibv_wr_opcode::Type,
        send_flags: c_uint,
        imm_data_invalidated_rkey_union: imm_data_invalidated_rkey_union_t,
        wr: wr_t,
        qp_type: qp_type_t,
        bind_mw_tso_union: bind_mw_tso_union_t,
    }

    struct ibv_wc {
        wr_id: u64,
        status: ibv_wc_status::Type,
        opcode: ibv_wc_opcode::Type,
        vendor_err: u32,
        byte_len: u32,
        imm_data_invalidated_rkey_union: imm_data_invalidated_rkey_union_t,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }

    union ibv_async_event_element_t {
        cq: *mut ibv_cq,
        qp: *mut ibv_qp,
        srq: *mut ibv_srq,
        wq: *mut ibv_wq,
        port_num: c_int,
    }

    struct ibv_async_event {
        element: ibv_async_event_element_t,
        event_type: ibv_event_type,
    }
}
