//! Declares the functions of both libraries. All functions are looked up when the libraries are
//! opened.

use libc::{c_char, c_int, c_uint, c_void, sockaddr, ssize_t};
use libloading::Library;
use rdma_status::OsError;

use super::{attributes::*, constants::*, objects::*, rdma_cm::*, work::*};
use crate::sys::{
    PerProcess,
    library::{function, library},
};

/// Opens both libraries, if they are not open yet.
///
/// This crate calls this function before every C function that takes no object of the libraries.
/// The other C functions take such an object, and the libraries were opened before the object was
/// created.
///
/// # Errors
///
/// Returns `ELIBACC` with the name of a library that cannot be opened. Returns `ELIBBAD` with the
/// name of a function if a library is older than rdma-core 32 and lacks that function.
pub(crate) fn open_libraries() -> Result<(), OsError> {
    functions().map(drop)
}

fn functions() -> Result<&'static Functions, OsError> {
    static FUNCTIONS: PerProcess<Result<Functions, OsError>> = PerProcess::new(Functions::open);

    FUNCTIONS.get().as_ref().map_err(|error| *error)
}

macro_rules! functions {
    ($( $library:ident = $file:literal {
        $( fn $name:ident($( $argument:ident: $type:ty ),* $(,)?) $( -> $result:ty )?; )*
    } )*) => {
        struct Functions {
            $( $( $name: unsafe extern "C" fn($( $type ),*) $( -> $result )?, )* )*
            /// The libraries that contain the functions. They must stay open while the function
            /// pointers are used.
            _libraries: [Library; 2],
        }

        impl Functions {
            fn open() -> Result<Self, OsError> {
                $( let $library = library($file)?; )*
                Ok(Self {
                    $( $(
                        // SAFETY: the declared type is the type in the header, which the test below
                        // checks.
                        $name: unsafe { function(&$library, stringify!($name)) }?,
                    )* )*
                    _libraries: [$( $library ),*],
                })
            }
        }

        $( $(
            pub(crate) unsafe extern "C" fn $name($( $argument: $type ),*) $( -> $result )? {
                let functions = functions()
                    .expect("the libraries must be opened before the first object is created");
                // SAFETY: the caller fulfils the requirements in the function's manual page.
                unsafe { (functions.$name)($( $argument ),*) }
            }
        )* )*

        #[cfg(all(test, feature = "linked"))]
        #[test]
        fn functions_match_the_headers() {
            use std::any::type_name_of_val;

            use crate::sys::{dlopen::define::{placeholder, without_module_paths}, linked};

            let functions = functions().unwrap();
            $( $( {
                let ours = functions.$name;
                let theirs =
                    linked::$name as unsafe extern "C" fn($( placeholder!($argument) ),*) -> _;
                assert_eq!(
                    without_module_paths(type_name_of_val(&ours)),
                    without_module_paths(type_name_of_val(&theirs)),
                    "{} must have the type in the headers",
                    stringify!($name),
                );
                // The addresses are equal if both pointers refer to the same symbol version.
                assert_eq!(
                    ours as usize,
                    theirs as usize,
                    "{} must have the symbol version that linked programs use",
                    stringify!($name),
                );
            } )* )*
        }
    };
}

functions! {
    libibverbs = "libibverbs.so.1" {
        fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device;
        fn ibv_free_device_list(list: *mut *mut ibv_device);
        fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
        fn ibv_get_device_guid(device: *mut ibv_device) -> u64;
        fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
        fn ibv_close_device(context: *mut ibv_context) -> c_int;
        fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
        fn ibv_ack_async_event(event: *mut ibv_async_event);
        fn ibv_query_device(context: *mut ibv_context, device_attr: *mut ibv_device_attr) -> c_int;
        fn ibv_query_port(
            context: *mut ibv_context,
            port_num: u8,
            port_attr: *mut _compat_ibv_port_attr,
        ) -> c_int;
        fn ibv_query_pkey(
            context: *mut ibv_context,
            port_num: u8,
            index: c_int,
            pkey: *mut u16,
        ) -> c_int;

        fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
        fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
        fn ibv_reg_mr(
            pd: *mut ibv_pd,
            addr: *mut c_void,
            length: usize,
            access: c_int,
        ) -> *mut ibv_mr;
        fn ibv_reg_mr_iova2(
            pd: *mut ibv_pd,
            addr: *mut c_void,
            length: usize,
            iova: u64,
            access: c_uint,
        ) -> *mut ibv_mr;
        fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;

        fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
        fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
        fn ibv_create_cq(
            context: *mut ibv_context,
            cqe: c_int,
            cq_context: *mut c_void,
            channel: *mut ibv_comp_channel,
            comp_vector: c_int,
        ) -> *mut ibv_cq;
        fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
        fn ibv_get_cq_event(
            channel: *mut ibv_comp_channel,
            cq: *mut *mut ibv_cq,
            cq_context: *mut *mut c_void,
        ) -> c_int;
        fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint);

        fn ibv_create_srq(pd: *mut ibv_pd, srq_init_attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
        fn ibv_modify_srq(
            srq: *mut ibv_srq,
            srq_attr: *mut ibv_srq_attr,
            srq_attr_mask: c_int,
        ) -> c_int;
        fn ibv_query_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr) -> c_int;
        fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;

        fn ibv_create_qp(pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
        fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;
        fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int;
        fn ibv_query_qp(
            qp: *mut ibv_qp,
            attr: *mut ibv_qp_attr,
            attr_mask: c_int,
            init_attr: *mut ibv_qp_init_attr,
        ) -> c_int;
        fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
        fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
        fn ibv_create_ah_from_wc(
            pd: *mut ibv_pd,
            wc: *mut ibv_wc,
            grh: *mut ibv_grh,
            port_num: u8,
        ) -> *mut ibv_ah;
        fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;

        fn _ibv_query_gid_ex(
            context: *mut ibv_context,
            port_num: u32,
            gid_index: u32,
            entry: *mut ibv_gid_entry,
            flags: u32,
            entry_size: usize,
        ) -> c_int;
        fn _ibv_query_gid_table(
            context: *mut ibv_context,
            entries: *mut ibv_gid_entry,
            max_entries: usize,
            flags: u32,
            entry_size: usize,
        ) -> ssize_t;
    }

    librdmacm = "librdmacm.so.1" {
        fn rdma_create_event_channel() -> *mut rdma_event_channel;
        fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
        fn rdma_get_cm_event(
            channel: *mut rdma_event_channel,
            event: *mut *mut rdma_cm_event,
        ) -> c_int;
        fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
        fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context;
        fn rdma_free_devices(list: *mut *mut ibv_context);
        fn rdma_getaddrinfo(
            node: *const c_char,
            service: *const c_char,
            hints: *const rdma_addrinfo,
            res: *mut *mut rdma_addrinfo,
        ) -> c_int;
        fn rdma_freeaddrinfo(res: *mut rdma_addrinfo);

        fn rdma_create_id(
            channel: *mut rdma_event_channel,
            id: *mut *mut rdma_cm_id,
            context: *mut c_void,
            ps: rdma_port_space::Type,
        ) -> c_int;
        fn rdma_create_ep(
            id: *mut *mut rdma_cm_id,
            res: *mut rdma_addrinfo,
            pd: *mut ibv_pd,
            qp_init_attr: *mut ibv_qp_init_attr,
        ) -> c_int;
        fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int;
        fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
        fn rdma_set_option(
            id: *mut rdma_cm_id,
            level: c_int,
            optname: c_int,
            optval: *mut c_void,
            optlen: usize,
        ) -> c_int;
        fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;
        fn rdma_resolve_addr(
            id: *mut rdma_cm_id,
            src_addr: *mut sockaddr,
            dst_addr: *mut sockaddr,
            timeout_ms: c_int,
        ) -> c_int;
        fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;
        fn rdma_create_qp(
            id: *mut rdma_cm_id,
            pd: *mut ibv_pd,
            qp_init_attr: *mut ibv_qp_init_attr,
        ) -> c_int;
        fn rdma_init_qp_attr(
            id: *mut rdma_cm_id,
            qp_attr: *mut ibv_qp_attr,
            qp_attr_mask: *mut c_int,
        ) -> c_int;

        fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
        fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int;
        fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int;
        fn rdma_reject(
            id: *mut rdma_cm_id,
            private_data: *const c_void,
            private_data_len: u8,
        ) -> c_int;
        fn rdma_reject_ece(
            id: *mut rdma_cm_id,
            private_data: *const c_void,
            private_data_len: u8,
        ) -> c_int;
        fn rdma_establish(id: *mut rdma_cm_id) -> c_int;
        fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int;
        fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int;
        fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int;
        fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int;

        fn rdma_join_multicast(
            id: *mut rdma_cm_id,
            addr: *mut sockaddr,
            context: *mut c_void,
        ) -> c_int;
        fn rdma_join_multicast_ex(
            id: *mut rdma_cm_id,
            mc_join_attr: *mut rdma_cm_join_mc_attr_ex,
            context: *mut c_void,
        ) -> c_int;
        fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;
    }
}
