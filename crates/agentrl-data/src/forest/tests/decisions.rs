//! Tests of decisions in the canonical order of forks.

use super::operations::{acted, forks};
use super::*;
use crate::schema::Operation;

/// Freeze a trunk and two equal forks of it without ordinals; the fork of number `first` gets the first decision.
fn decided(first: usize, decisions: &[impl Fn(&mut Decision, &[Handle], Handle); 2]) -> Result<Batch> {
    let mut forest = Forest::new(0, 0);
    forest.add_group(0, "task")?;
    let trunk = forest.start(0, 0)?;
    let prompt = forest.append(trunk, NewNode::prompt(vec![1, 2, 3]))?;
    let action = acted(&mut forest, trunk, 10, 0.0);
    let equal = forest.fork_many(trunk, None, None, &forks(2, None))?;
    let results = equal.iter().map(|&fork| forest.fork(fork, None, None)).collect::<Result<Vec<_>>>()?;
    for (place, decide) in decisions.iter().enumerate() {
        let fork = (first + place) % 2;
        let mut decision = Decision::new(Operation::Fork, equal[fork], 0);
        decide(&mut decision, &[prompt, action], results[fork]);
        forest.decide(decision)?;
    }
    for (trajectory, token) in [trunk, equal[0], equal[1], results[0], results[1]].into_iter().zip([20, 30, 30, 40, 40])
    {
        acted(&mut forest, trajectory, token, 1.0);
        forest.finish(trajectory, Finish::default())?;
    }
    forest.freeze()
}

#[test]
fn forks_with_different_decisions_are_ordered_by_them_and_not_by_arrival() -> Result<()> {
    type Decide = fn(&mut Decision, &[Handle], Handle);
    let cases: [[Decide; 2]; 3] = [
        [|decision, nodes, _| decision.node = Some(nodes[0]), |decision, nodes, _| decision.node = Some(nodes[1])],
        [
            |decision, nodes, _| (decision.node, decision.end) = (Some(nodes[0]), Some(1)),
            |decision, nodes, _| (decision.node, decision.end) = (Some(nodes[0]), Some(2)),
        ],
        [|_, _, _| (), |decision, _, result| decision.result = Some(result)],
    ];
    for (case, decisions) in cases.into_iter().enumerate() {
        let (one, other) = (decided(0, &decisions)?, decided(1, &decisions)?);
        assert_eq!(without_time(&one), without_time(&other), "case {case}");
    }
    Ok(())
}
