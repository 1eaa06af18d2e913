use crate::case::{Case, Ends, Side, Who};

/// What it prints is held against what `ibv_devinfo` does on the same host.
pub(crate) fn cases() -> Vec<Case> {
    let nobody = || Side::new(Who::C, "true", "");
    let case = |what, side| Case::new("devinfo", what, None, nobody(), side);
    let bash = |line: &str| {
        let mut side = Side::new(Who::Rust, "bash", "");
        side.who = Who::C;
        side.argv.extend(["-c".into(), line.into()]);
        side
    };
    let ours = |options: &str| Side::new(Who::Rust, "devinfo", options);
    vec![
        case(
            "as it comes, and the GIDs",
            bash("diff -B <(ibv_devinfo) <({programs}/devinfo | grep -v GID)"),
        )
        .quick(),
        // Each line of ours that has a counterpart there, but for those of which the C program has
        // none or another form.
        case(
            "limits and GIDs",
            bash(
                "{programs}/devinfo -v >/tmp/ours && ! ibv_devinfo -v | grep -vxFf - /tmp/ours \\
                 | grep -vE '(odp_caps|completion_timestamp_mask|hca_core_clock|max_dm_size):' \\
                 && [ $(wc -l </tmp/ours) -gt 45 ]",
            ),
        )
        .quick(),
        case(
            "JSON",
            ours("--json")
                .says("\"hca_id\": \"rxe0\"")
                .says("\"state\": \"PORT_ACTIVE\"")
                .says("\"active_mtu\": 4096")
                .says("\"type\": \"RoCE v2\""),
        ),
        case("the names", ours("-l").says("1 HCA found:\n\trxe0")),
        case(
            "a device and a port",
            ours("-d rxe0 -i 1").says("PORT_ACTIVE (4)"),
        ),
        case(
            "a device that is not there",
            ours("-d mlx9")
                .ends(Ends::Badly)
                .says("there is no device mlx9"),
        ),
        case(
            "a port that the device has not",
            ours("-i 7").ends(Ends::Badly).says("port 7 of rxe0"),
        ),
    ]
}
