//! Tests of the canonical order of forks with equal tokens and without ordinals.

use super::operations::{acted, forks};
use super::*;
use crate::schema::{Operation, Role};

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

#[test]
fn forks_whose_answers_have_different_roles_are_ordered_by_them_and_not_by_arrival() -> Result<()> {
    let answered = |first: usize| -> Result<Batch> {
        let mut forest = Forest::new(0, 0);
        forest.add_group(0, "task")?;
        let trunk = forest.start(0, 0)?;
        forest.append(trunk, NewNode::prompt(vec![1, 2, 3]))?;
        let equal = forest.fork_many(trunk, None, None, &forks(2, None))?;
        for (place, role) in [Role::Member, Role::Helper].into_iter().enumerate() {
            let parent = Some(equal[(first + place) % 2]);
            let answer = forest.start_as(0, &Start { member: 1 + place as u32, parent, role, ..Start::default() })?;
            forest.append(answer, NewNode::prompt(vec![4]))?;
            acted(&mut forest, answer, 20, 1.0);
            forest.finish(answer, Finish::default())?;
        }
        for trajectory in [trunk, equal[0], equal[1]] {
            acted(&mut forest, trajectory, 10, 1.0);
            forest.finish(trajectory, Finish::default())?;
        }
        forest.freeze()
    };
    assert_eq!(without_time(&answered(0)?), without_time(&answered(1)?));
    Ok(())
}
