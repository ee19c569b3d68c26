use super::*;
use crate::errors::cause::Cause;
use crate::net::driver::observe::Observer;
use crate::protocol::quorum::core::Input;
use crate::protocol::quorum::thread_step::{ThreadRole, ThreadStep};
use crate::settings::into_node::IntoNodes;
use crate::settings::options::Options;

/// A driver of one node, at which nothing listens, and the caller that waits for an operation under way.
fn waiting() -> (Driver, Arc<Caller>) {
    let node = "redis://127.0.0.1:1".into_nodes().unwrap();
    let driver = Driver::new(Executor::new(
        node,
        &Options::default(),
        Observer::default(),
    ));
    let caller = submit(&mut driver.executor.driver_state(), Op::ping());
    (driver, caller)
}

fn leads(turn: Option<Signal>) -> Option<Box<LeaderState>> {
    match turn? {
        Signal::Leads(leader) => Some(leader),
        Signal::Answered(_) => None,
    }
}

/// Makes this thread the leader, and ends that.
fn lead_and_end(driver: &Driver) {
    let mut lead = LeaderLoop {
        executor: &driver.executor,
        leader: driver
            .executor
            .take_lead(&mut driver.executor.driver_state()),
    };
    lead.end(driver.executor.driver_state());
}

/// Makes the node's worker fail to connect: that ends operations.
fn fail_to_connect(driver: &Driver) {
    let (mut driver_state, now) = (driver.executor.driver_state(), clock::instant());
    driver_state.core.next(ThreadRole::Leader, now);
    driver_state.core.input(0, Input::Started(Ok(())), now);
    driver_state.core.connect_now();
    let task = driver_state.core.next(ThreadRole::Worker(0), now);
    assert!(matches!(task, ThreadStep::Connect { .. }), "{task:?}");
    driver_state
        .core
        .connected(0, Err(Cause::Closed("at once".into())), now);
}

#[test]
fn one_thread_takes_the_lead_and_it_waits_for_an_answer() {
    let (driver, caller) = waiting();
    let answered = Caller::new(None);
    assert!(driver.try_to_lead(&answered, true).is_none());
    assert!(driver.executor.is_lead_vacant());
    assert!(leads(driver.try_to_lead(&caller, true)).is_some());
    assert!(driver.try_to_lead(&caller, true).is_none());
    assert!(!driver.executor.is_lead_vacant());
}

/// A lead that no thread looks for would be lost.
#[test]
fn the_lead_is_left_to_a_thread_that_is_awake_and_handed_to_one_that_sleeps() {
    for awake in [true, false] {
        let (driver, caller) = waiting();
        caller.set_awake(awake);
        lead_and_end(&driver);
        assert_eq!(driver.executor.is_lead_vacant(), awake);
        assert_eq!(leads(caller.take_signal()).is_some(), !awake);
        // The thread looks once more before it sleeps.
        assert_eq!(leads(driver.wait_awake(&caller)).is_some(), awake);
        assert!(!caller.is_awake() || awake);
    }
}

#[test]
fn a_leader_that_ends_delivers_what_has_become_certain_meanwhile() {
    let (driver, caller) = waiting();
    let leader = driver
        .executor
        .take_lead(&mut driver.executor.driver_state());
    fail_to_connect(&driver);
    fail_to_connect(&driver);
    driver
        .executor
        .leave_lead(&mut driver.executor.driver_state(), leader.unwrap());
    lead_and_end(&driver);
    assert!(matches!(caller.take_signal(), Some(Signal::Answered(_))));
}

/// Nodes' workers make answers certain, too. While no thread leads, no thread delivers them.
#[test]
fn a_thread_that_is_answered_while_no_thread_leads_takes_its_answer_and_wakes_the_next() {
    let (driver, first) = waiting();
    fail_to_connect(&driver);
    drop(driver.collect(&[first]));
    let answered = submit(&mut driver.executor.driver_state(), Op::ping());
    answered.set_awake(true);
    lead_and_end(&driver);
    fail_to_connect(&driver);
    assert_eq!(driver.executor.driver_state().core.answers.len(), 1);
    let asleep = submit(&mut driver.executor.driver_state(), Op::ping());
    let leader = leads(driver.wait_awake(&answered)).expect("it would sleep for ever");
    let answer = driver.lead(
        leader,
        driver.executor.driver_state(),
        clock::instant(),
        Some(&answered),
    );
    assert!(matches!(answer.outcome, Outcome::Unavailable { .. }));
    assert!(leads(asleep.take_signal()).is_some());
}

/// A hand-off may fail. Then the thread sleeps in its queue, and is handed off another lock.
#[test]
fn a_thread_that_was_answered_awake_is_not_taken_for_awake_at_its_next_hand_off() {
    let (driver, caller) = waiting();
    for _ in 0..2 {
        fail_to_connect(&driver);
    }
    drop(driver.run_handed_off(&caller));
    let submitter = Submitter::Caller(caller.clone());
    let mut driver_state = driver.executor.driver_state();
    driver_state
        .core
        .submit(Op::ping(), submitter, clock::instant());
    drop(driver_state);
    lead_and_end(&driver);
    assert!(leads(caller.take_signal()).is_some(), "it would sleep on");
}
