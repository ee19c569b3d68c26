use super::*;
use crate::into_node::IntoNodes;
use crate::observe::Observer;
use crate::options::Options;

/// Nothing listens there. An operation on it has begun, and this waits for the answer.
fn waiting() -> (Driver, Arc<Waiter>) {
    let node = "redis://127.0.0.1:1".into_nodes().unwrap();
    let driver = Driver::new(Nodes::new(node, &Options::default(), Observer::default()));
    let waiter = submit(&mut driver.nodes.state(), Op::ping());
    (driver, waiter)
}

fn leads(turn: Option<Turn>) -> Option<Box<Leader>> {
    match turn? {
        Turn::Leads(leader) => Some(leader),
        Turn::Answered(_) => None,
    }
}

#[test]
fn one_thread_takes_the_lead_and_its_operation_is_under_way() {
    let (driver, waiter) = waiting();
    let answered = Waiter::new(None);
    assert!(driver.take_lead(&answered, true).is_none());
    assert!(driver.nodes.is_lead_vacant());
    assert!(leads(driver.take_lead(&waiter, true)).is_some());
    assert!(driver.take_lead(&waiter, true).is_none());
    assert!(!driver.nodes.is_lead_vacant());
}

/// A lead that no thread looks for would be lost.
#[test]
fn the_lead_is_left_to_a_thread_that_is_awake_and_handed_to_one_that_sleeps() {
    for awake in [true, false] {
        let (driver, waiter) = waiting();
        let leader = driver.nodes.take_lead(&mut driver.nodes.state());
        // It has looked for the last time, or goes on looking.
        assert!(driver.take_lead(&waiter, awake).is_none());
        let mut lead = Lead {
            nodes: &driver.nodes,
            leader,
        };
        lead.end(driver.nodes.state());
        assert_eq!(driver.nodes.is_lead_vacant(), awake);
        assert_eq!(leads(waiter.take_turn()).is_some(), !awake);
        // It looks once more before it sleeps.
        assert_eq!(leads(driver.take_lead(&waiter, false)).is_some(), awake);
    }
}
