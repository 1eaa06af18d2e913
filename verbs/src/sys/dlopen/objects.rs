//! The objects of libibverbs. They contain pointers to driver functions.

use libc::{c_char, c_int, c_uint, c_void, pthread_cond_t, pthread_mutex_t};

use super::{attributes::*, constants::*, define::types, work::*};

/// An operation that this crate does not call, or an unused entry in a table of operations.
pub(super) type Operation = Option<unsafe extern "C" fn()>;

types! {
    opaque _compat_ibv_port_attr {}
    opaque ibv_query_device_ex_input {}
    opaque ibv_rwq_ind_table {}
    opaque ibv_wq {}
    opaque ibv_xrcd {}
    opaque verbs_ex_private {}

    struct _ibv_device_ops {
        _dummy1: Operation,
        _dummy2: Operation,
    }

    struct ibv_device {
        _ops: _ibv_device_ops,
        node_type: c_int,
        transport_type: c_int,
        name: [c_char; 64],
        dev_name: [c_char; 64],
        dev_path: [c_char; 256],
        ibdev_path: [c_char; 256],
    }

    struct ibv_context_ops {
        _compat_query_device: Operation,
        _compat_query_port: Operation,
        _compat_alloc_pd: Operation,
        _compat_dealloc_pd: Operation,
        _compat_reg_mr: Operation,
        _compat_rereg_mr: Operation,
        _compat_dereg_mr: Operation,
        alloc_mw: Option<unsafe extern "C" fn(
            pd: *mut ibv_pd,
            type_: ibv_mw_type::Type,
        ) -> *mut ibv_mw>,
        bind_mw: Operation,
        dealloc_mw: Option<unsafe extern "C" fn(mw: *mut ibv_mw) -> c_int>,
        _compat_create_cq: Operation,
        poll_cq: Option<unsafe extern "C" fn(
            cq: *mut ibv_cq,
            num_entries: c_int,
            wc: *mut ibv_wc,
        ) -> c_int>,
        req_notify_cq: Option<unsafe extern "C" fn(
            cq: *mut ibv_cq,
            solicited_only: c_int,
        ) -> c_int>,
        _compat_cq_event: Operation,
        _compat_resize_cq: Operation,
        _compat_destroy_cq: Operation,
        _compat_create_srq: Operation,
        _compat_modify_srq: Operation,
        _compat_query_srq: Operation,
        _compat_destroy_srq: Operation,
        post_srq_recv: Option<unsafe extern "C" fn(
            srq: *mut ibv_srq,
            recv_wr: *mut ibv_recv_wr,
            bad_recv_wr: *mut *mut ibv_recv_wr,
        ) -> c_int>,
        _compat_create_qp: Operation,
        _compat_query_qp: Operation,
        _compat_modify_qp: Operation,
        _compat_destroy_qp: Operation,
        post_send: Option<unsafe extern "C" fn(
            qp: *mut ibv_qp,
            wr: *mut ibv_send_wr,
            bad_wr: *mut *mut ibv_send_wr,
        ) -> c_int>,
        post_recv: Option<unsafe extern "C" fn(
            qp: *mut ibv_qp,
            wr: *mut ibv_recv_wr,
            bad_wr: *mut *mut ibv_recv_wr,
        ) -> c_int>,
        _compat_create_ah: Operation,
        _compat_destroy_ah: Operation,
        _compat_attach_mcast: Operation,
        _compat_detach_mcast: Operation,
        _compat_async_event: Operation,
    }

    struct ibv_context {
        device: *mut ibv_device,
        ops: ibv_context_ops,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: pthread_mutex_t,
        abi_compat: *mut c_void,
    }

    growing_in_front verbs_context {
        query_port: Option<unsafe extern "C" fn(
            context: *mut ibv_context,
            port_num: u8,
            port_attr: *mut ibv_port_attr,
            port_attr_len: usize,
        ) -> c_int>,
        advise_mr: Option<unsafe extern "C" fn(
            pd: *mut ibv_pd,
            advice: ib_uverbs_advise_mr_advice::Type,
            flags: u32,
            sg_list: *mut ibv_sge,
            num_sges: u32,
        ) -> c_int>,
        alloc_null_mr: Operation,
        read_counters: Operation,
        attach_counters_point_flow: Operation,
        create_counters: Operation,
        destroy_counters: Operation,
        reg_dm_mr: Option<unsafe extern "C" fn(
            pd: *mut ibv_pd,
            dm: *mut ibv_dm,
            dm_offset: u64,
            length: usize,
            access: c_uint,
        ) -> *mut ibv_mr>,
        alloc_dm: Option<unsafe extern "C" fn(
            context: *mut ibv_context,
            attr: *mut ibv_alloc_dm_attr,
        ) -> *mut ibv_dm>,
        free_dm: Option<unsafe extern "C" fn(dm: *mut ibv_dm) -> c_int>,
        modify_flow_action_esp: Operation,
        destroy_flow_action: Operation,
        create_flow_action_esp: Operation,
        modify_qp_rate_limit: Operation,
        alloc_parent_domain: Option<unsafe extern "C" fn(
            context: *mut ibv_context,
            attr: *mut ibv_parent_domain_init_attr,
        ) -> *mut ibv_pd>,
        dealloc_td: Option<unsafe extern "C" fn(td: *mut ibv_td) -> c_int>,
        alloc_td: Option<unsafe extern "C" fn(
            context: *mut ibv_context,
            init_attr: *mut ibv_td_init_attr,
        ) -> *mut ibv_td>,
        modify_cq: Operation,
        post_srq_ops: Operation,
        destroy_rwq_ind_table: Operation,
        create_rwq_ind_table: Operation,
        destroy_wq: Operation,
        modify_wq: Operation,
        create_wq: Operation,
        query_rt_values: Operation,
        create_cq_ex: Option<unsafe extern "C" fn(
            context: *mut ibv_context,
            init_attr: *mut ibv_cq_init_attr_ex,
        ) -> *mut ibv_cq_ex>,
        priv_: *mut verbs_ex_private,
        query_device_ex: Option<unsafe extern "C" fn(
            context: *mut ibv_context,
            input: *const ibv_query_device_ex_input,
            attr: *mut ibv_device_attr_ex,
            attr_size: usize,
        ) -> c_int>,
        ibv_destroy_flow: Operation,
        ABI_placeholder2: Operation,
        ibv_create_flow: Operation,
        ABI_placeholder1: Operation,
        open_qp: Operation,
        create_qp_ex: Option<unsafe extern "C" fn(
            context: *mut ibv_context,
            qp_init_attr_ex: *mut ibv_qp_init_attr_ex,
        ) -> *mut ibv_qp>,
        get_srq_num: Operation,
        create_srq_ex: Operation,
        open_xrcd: Operation,
        close_xrcd: Operation,
        _ABI_placeholder3: u64,
        sz: usize,
        context: ibv_context,
    }

    struct ibv_pd {
        context: *mut ibv_context,
        handle: u32,
    }

    struct ibv_td {
        context: *mut ibv_context,
    }

    struct ibv_td_init_attr {
        comp_mask: u32,
    }

    struct ibv_parent_domain_init_attr {
        pd: *mut ibv_pd,
        td: *mut ibv_td,
        comp_mask: u32,
        alloc: Operation,
        free: Operation,
        pd_context: *mut c_void,
    }

    struct ibv_mr {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }

    struct ibv_mw {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        rkey: u32,
        handle: u32,
        type_: ibv_mw_type::Type,
    }

    struct ibv_dm {
        context: *mut ibv_context,
        memcpy_to_dm: Option<unsafe extern "C" fn(
            dm: *mut ibv_dm,
            dm_offset: u64,
            host_addr: *const c_void,
            length: usize,
        ) -> c_int>,
        memcpy_from_dm: Option<unsafe extern "C" fn(
            host_addr: *mut c_void,
            dm: *mut ibv_dm,
            dm_offset: u64,
            length: usize,
        ) -> c_int>,
        comp_mask: u32,
        handle: u32,
    }

    struct ibv_comp_channel {
        context: *mut ibv_context,
        fd: c_int,
        refcnt: c_int,
    }

    struct ibv_cq {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
    }

    growing ibv_cq_ex {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
        comp_mask: u32,
        status: ibv_wc_status::Type,
        wr_id: u64,
        start_poll: Option<unsafe extern "C" fn(
            current: *mut ibv_cq_ex,
            attr: *mut ibv_poll_cq_attr,
        ) -> c_int>,
        next_poll: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> c_int>,
        end_poll: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex)>,
        read_opcode: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> ibv_wc_opcode::Type>,
        read_vendor_err: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        read_byte_len: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        read_imm_data: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        read_qp_num: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        read_src_qp: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        read_wc_flags: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> c_uint>,
        read_slid: Operation,
        read_sl: Operation,
        read_dlid_path_bits: Operation,
        read_completion_ts: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u64>,
        read_cvlan: Operation,
        read_flow_tag: Operation,
        read_tm_info: Operation,
        read_completion_wallclock_ns: Operation,
    }

    struct ibv_srq {
        context: *mut ibv_context,
        srq_context: *mut c_void,
        pd: *mut ibv_pd,
        handle: u32,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }

    struct ibv_qp {
        context: *mut ibv_context,
        qp_context: *mut c_void,
        pd: *mut ibv_pd,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        handle: u32,
        qp_num: u32,
        state: ibv_qp_state::Type,
        qp_type: ibv_qp_type::Type,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }

    growing ibv_qp_ex {
        qp_base: ibv_qp,
        comp_mask: u64,
        wr_id: u64,
        wr_flags: c_uint,
        wr_atomic_cmp_swp: Option<unsafe extern "C" fn(
            qp: *mut ibv_qp_ex,
            rkey: u32,
            remote_addr: u64,
            compare: u64,
            swap: u64,
        )>,
        wr_atomic_fetch_add: Option<unsafe extern "C" fn(
            qp: *mut ibv_qp_ex,
            rkey: u32,
            remote_addr: u64,
            add: u64,
        )>,
        wr_bind_mw: Operation,
        wr_local_inv: Operation,
        wr_rdma_read: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64)>,
        wr_rdma_write: Option<unsafe extern "C" fn(
            qp: *mut ibv_qp_ex,
            rkey: u32,
            remote_addr: u64,
        )>,
        wr_rdma_write_imm: Option<unsafe extern "C" fn(
            qp: *mut ibv_qp_ex,
            rkey: u32,
            remote_addr: u64,
            imm_data: u32,
        )>,
        wr_send: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
        wr_send_imm: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, imm_data: u32)>,
        wr_send_inv: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, invalidate_rkey: u32)>,
        wr_send_tso: Operation,
        wr_set_ud_addr: Option<unsafe extern "C" fn(
            qp: *mut ibv_qp_ex,
            ah: *mut ibv_ah,
            remote_qpn: u32,
            remote_qkey: u32,
        )>,
        wr_set_xrc_srqn: Operation,
        wr_set_inline_data: Option<unsafe extern "C" fn(
            qp: *mut ibv_qp_ex,
            addr: *mut c_void,
            length: usize,
        )>,
        wr_set_inline_data_list: Operation,
        wr_set_sge: Operation,
        wr_set_sge_list: Option<unsafe extern "C" fn(
            qp: *mut ibv_qp_ex,
            num_sge: usize,
            sg_list: *const ibv_sge,
        )>,
        wr_start: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
        wr_complete: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex) -> c_int>,
        wr_abort: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
    }

    struct ibv_ah {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        handle: u32,
    }
}
