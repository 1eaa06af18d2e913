//! The types of librdmacm's interface.

use libc::{
    c_char, c_int, c_void, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t,
};

use super::{constants::*, define::types, objects::*, work::*};

types! {
    opaque ibv_sa_path_rec {}

    struct rdma_event_channel {
        fd: c_int,
    }

    struct rdma_ib_addr { sgid: ibv_gid, dgid: ibv_gid, pkey: u16 }

    union src_addr_union_t {
        src_addr: sockaddr,
        src_sin: sockaddr_in,
        src_sin6: sockaddr_in6,
        src_storage: sockaddr_storage,
    }

    union dst_addr_union_t {
        dst_addr: sockaddr,
        dst_sin: sockaddr_in,
        dst_sin6: sockaddr_in6,
        dst_storage: sockaddr_storage,
    }

    union addr_union_t { ibaddr: rdma_ib_addr }

    struct rdma_addr {
        src_addr_union: src_addr_union_t,
        dst_addr_union: dst_addr_union_t,
        addr: addr_union_t,
    }

    struct rdma_route {
        addr: rdma_addr,
        path_rec: *mut ibv_sa_path_rec,
        num_paths: c_int,
    }

    struct rdma_cm_id {
        verbs: *mut ibv_context,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        qp: *mut ibv_qp,
        route: rdma_route,
        ps: rdma_port_space::Type,
        port_num: u8,
        event: *mut rdma_cm_event,
        send_cq_channel: *mut ibv_comp_channel,
        send_cq: *mut ibv_cq,
        recv_cq_channel: *mut ibv_comp_channel,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        pd: *mut ibv_pd,
        qp_type: ibv_qp_type::Type,
    }

    struct rdma_conn_param {
        private_data: *const c_void,
        private_data_len: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        srq: u8,
        qp_num: u32,
    }

    struct rdma_ud_param {
        private_data: *const c_void,
        private_data_len: u8,
        ah_attr: ibv_ah_attr,
        qp_num: u32,
        qkey: u32,
    }

    union param_t { conn: rdma_conn_param, ud: rdma_ud_param }

    struct rdma_cm_event {
        id: *mut rdma_cm_id,
        listen_id: *mut rdma_cm_id,
        event: rdma_cm_event_type::Type,
        status: c_int,
        param: param_t,
    }

    struct rdma_cm_join_mc_attr_ex {
        comp_mask: u32,
        join_flags: u32,
        addr: *mut sockaddr,
    }

    struct rdma_addrinfo {
        ai_flags: c_int,
        ai_family: c_int,
        ai_qp_type: c_int,
        ai_port_space: c_int,
        ai_src_len: socklen_t,
        ai_dst_len: socklen_t,
        ai_src_addr: *mut sockaddr,
        ai_dst_addr: *mut sockaddr,
        ai_src_canonname: *mut c_char,
        ai_dst_canonname: *mut c_char,
        ai_route_len: usize,
        ai_route: *mut c_void,
        ai_connect_len: usize,
        ai_connect: *mut c_void,
        ai_next: *mut rdma_addrinfo,
    }
}
