//! Tests queue pairs that the program itself creates and moves between states. Also tests enhanced
//! connection establishment (ECE).

use rdmsg::{
    cm::{CmId, ConnParam, Ece, EventChannel},
    status::CmEventType,
    verbs::{QpState, QueuePair},
};
use toolbox::{DeviceTest, Lab};

use crate::common::{
    CLIENT, EINVAL, Queues, SERVER, Server, assert_none, expect_success, resolved,
};

const OFFER: Ece = Ece {
    vendor_id: 0x0011_2233,
    options: 0x0000_0005,
};
const ANSWER: Ece = Ece {
    vendor_id: 0x0011_2233,
    options: 0x0000_0001,
};
const NOTHING: Ece = Ece {
    vendor_id: 0,
    options: 0,
};

fn queues(id: &CmId) -> Queues {
    Queues::new(&id.verbs().unwrap(), |pd, attr| {
        QueuePair::new(pd, attr).unwrap()
    })
}

fn move_to(id: &mut CmId, queues: &Queues, state: QpState) {
    let attr = id.init_qp_attr(state).unwrap();
    assert_eq!(attr.qp_state, Some(state));
    queues.qp.modify(&attr).unwrap();
    assert_eq!(queues.qp.state(), Ok(state));
}

fn param(queues: &Queues) -> ConnParam {
    ConnParam {
        qp_num: queues.qp.qp_num(),
        responder_resources: 1,
        initiator_depth: 1,
        ..ConnParam::default()
    }
}

fn run_lifecycle(offer: Option<Ece>, answer: Option<Ece>) {
    let server = Server::new(Lab::get().addr);
    let channel = EventChannel::new().unwrap();
    let mut client = resolved(&channel, server.addr, CLIENT);
    let connecting = queues(&client);
    move_to(&mut client, &connecting, QpState::INIT);
    if let Some(offer) = offer {
        client.set_local_ece(offer).unwrap();
    }
    client.connect(&param(&connecting)).unwrap();

    let mut event = server.request();
    assert_eq!(event.conn().unwrap().qp_num, connecting.qp.qp_num());
    let mut accepted = event.take_request().unwrap();
    accepted.set_context(SERVER);
    assert_eq!(accepted.get_remote_ece(), Ok(offer.unwrap_or(NOTHING)));
    if let Some(answer) = answer {
        accepted.set_local_ece(answer).unwrap();
    }
    let accepting = queues(&accepted);
    for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
        move_to(&mut accepted, &accepting, state);
    }
    accepted.accept(&param(&accepting)).unwrap();

    let event = expect_success(&channel, CmEventType::CONNECT_RESPONSE, CLIENT);
    assert_eq!(event.conn().unwrap().qp_num, accepting.qp.qp_num());
    assert_eq!(client.get_remote_ece(), Ok(answer.unwrap_or(NOTHING)));
    assert_none(&server.channel);
    for state in [QpState::RTR, QpState::RTS] {
        move_to(&mut client, &connecting, state);
    }
    client.establish().unwrap();
    expect_success(&server.channel, CmEventType::ESTABLISHED, SERVER);
    assert_none(&channel);
    connecting.exchange(&accepting);

    client.disconnect().unwrap();
    expect_success(&server.channel, CmEventType::DISCONNECTED, SERVER);
    accepted.disconnect().unwrap();
    expect_success(&channel, CmEventType::DISCONNECTED, CLIENT);
    // librdmacm does not change the states of these queue pairs, because the program has created
    // them.
    assert_eq!(connecting.qp.state(), Ok(QpState::RTS));
    assert_eq!(accepting.qp.state(), Ok(QpState::RTS));
}

#[test]
fn a_program_moves_its_own_queue_pairs() {
    let _test = DeviceTest::without_credits();
    run_lifecycle(None, None);
}

#[test]
fn vendor_options_travel_with_the_connection() {
    let _test = DeviceTest::without_credits();
    run_lifecycle(Some(OFFER), Some(ANSWER));
}

/// If a queue pair belongs to an id, librdmacm handles establishment and ECE itself, so `establish`
/// and the calls for ECE fail. `set_local_ece` rejects a vendor id of 0 on every id.
#[test]
fn own_queue_pair_is_refused_on_id_with_one() {
    let lab = DeviceTest::without_credits();
    let server = Server::new(lab.addr);
    let channel = EventChannel::new().unwrap();
    let mut client = resolved(&channel, server.addr, CLIENT);
    let error = client.set_local_ece(NOTHING).unwrap_err();
    assert_eq!((error.call, error.errno), ("rdma_set_local_ece", EINVAL));
    let _queues = Queues::of(&mut client);
    let error = client.set_local_ece(OFFER).unwrap_err();
    assert_eq!((error.call, error.errno), ("rdma_set_local_ece", EINVAL));
    let error = client.get_remote_ece().unwrap_err();
    assert_eq!((error.call, error.errno), ("rdma_get_remote_ece", EINVAL));
    let error = client.establish().unwrap_err();
    assert_eq!((error.call, error.errno), ("rdma_establish", EINVAL));
}

/// The driver of the lab's device supports no ECE options. If a queue pair belongs to the accepting
/// id, the answer therefore contains the offered vendor id, but no options.
#[test]
fn missing_vendor_options_are_not_granted() {
    let lab = DeviceTest::without_credits();
    let server = Server::new(lab.addr);
    let channel = EventChannel::new().unwrap();
    let mut client = resolved(&channel, server.addr, CLIENT);
    let connecting = queues(&client);
    move_to(&mut client, &connecting, QpState::INIT);
    client.set_local_ece(OFFER).unwrap();
    client.connect(&param(&connecting)).unwrap();
    let mut accepted = server.request().take_request().unwrap();
    assert_eq!(accepted.get_remote_ece(), Ok(OFFER));
    let accepting = Queues::of(&mut accepted);
    accepted.accept(&ConnParam::default()).unwrap();
    expect_success(&channel, CmEventType::CONNECT_RESPONSE, CLIENT);
    let nothing_of_theirs = Ece {
        options: 0,
        ..OFFER
    };
    assert_eq!(client.get_remote_ece(), Ok(nothing_of_theirs));
    for state in [QpState::RTR, QpState::RTS] {
        move_to(&mut client, &connecting, state);
    }
    client.establish().unwrap();
    expect_success(&server.channel, CmEventType::ESTABLISHED, 0);
    connecting.exchange(&accepting);
}
