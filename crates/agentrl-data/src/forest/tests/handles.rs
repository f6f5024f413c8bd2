//! Tests of handles, inherited steps and interruption.

use super::operations::{acted, message};
use super::*;
use crate::schema::{Kind, Operation};

#[test]
fn a_handle_of_another_forest_is_refused() -> Result<()> {
    let (mut forest, trunk, prompt, _) = small();
    let (mut other, foreign, theirs, _) = small();
    let again = forest.start(0, 1)?;
    for refused in [
        forest.append(foreign, NewNode::observation(vec![1])).map(drop),
        forest.step(foreign, &StepOutcome::default()),
        forest.finish(foreign, Finish::default()),
        forest.fork(foreign, None, None).map(drop),
        forest.splice(trunk, (None, None), foreign, (theirs, 0)).map(drop),
        forest.replace(trunk, foreign),
        forest.start_as(0, &Start { member: 2, parent: Some(foreign), ..Start::default() }).map(drop),
        forest.decide(Decision::new(Operation::Stop, foreign, 0)),
        forest.tokens(foreign).map(drop),
    ] {
        assert!(message(refused).contains(&format!(
            "trajectory {foreign} is not in the forest: its group was frozen, or the handle is of another forest"
        )));
    }
    assert!(message(forest.fork(trunk, Some(theirs), None)).contains("is not on the path"));
    let copied = NewNode { origin: Some(theirs), ..NewNode::new(Kind::Injected, vec![1]) };
    assert!(message(forest.append(trunk, copied)).contains("which is not a node of group 0"));
    let elsewhere = Decision { node: Some(theirs), ..Decision::new(Operation::Stop, trunk, 0) };
    assert!(message(forest.decide(elsewhere)).contains("which is not in group 0"));
    // A group that reuses the number of a frozen group is another group.
    forest.abort();
    forest.freeze()?;
    forest.add_group(0, "task")?;
    let later = forest.start(0, 0)?;
    assert_ne!(later, trunk);
    assert!(message(forest.append(trunk, NewNode::prompt(vec![1]))).contains("its group was frozen"));
    forest.append(later, NewNode::prompt(vec![1]))?;
    assert!(message(forest.fork(later, Some(prompt), None)).contains("is not on the path"));
    // A trajectory that was never started, in a live group.
    assert!(message(forest.tokens(later + 9)).contains("it was never started"));
    assert!(again != later && other.append(foreign, NewNode::observation(vec![1])).is_ok());
    Ok(())
}

#[test]
fn a_step_is_stored_once_however_many_branches_inherit_it() -> Result<()> {
    let (mut forest, trunk, _, action) = small();
    forest.step(trunk, &StepOutcome::default())?;
    let mut nodes = vec![action];
    for turn in 1..50 {
        nodes.push(acted(&mut forest, trunk, turn, 0.0));
    }
    let mut branch = trunk;
    let mut expected = 50;
    for turn in 0..20 {
        // After the last step, inside an inherited step, and after the first step.
        for (node, end) in [(None, None), (Some(nodes[20]), Some(1)), (Some(nodes[0]), Some(4))] {
            forest.fork_many(branch, node, end, &operations::forks(10, None))?;
        }
        branch = forest.fork(branch, None, None)?;
        if turn % 2 == 0 {
            acted(&mut forest, branch, turn, 1.0);
            expected += 1;
        }
    }
    let group = forest.group(trunk)?;
    let stored: usize = group.trajectories.iter().map(|entry| entry.steps.own().len()).sum();
    assert_eq!(stored, expected);
    let steps: Vec<usize> = group.trajectories.iter().map(|entry| entry.steps.len()).collect();
    assert_eq!(steps[1..32], [[50; 10], [20; 10], [1; 10]].concat().into_iter().chain([51]).collect::<Vec<_>>());
    assert_eq!(
        group.steps(split(branch).1).map(|step| step.end).max(),
        Some(group.position(group.trajectories[split(branch).1].tip))
    );
    for (number, step) in group.steps(split(branch).1).enumerate() {
        assert_eq!(group.step(split(branch).1, number).map(|step| step.end), Some(step.end));
    }
    Ok(())
}

#[test]
fn freezing_stops_at_a_failed_check_and_keeps_the_groups() -> Result<()> {
    let grown = || -> Result<Forest> {
        let (mut forest, trunk, _, action) = small();
        for way in forest.fork_many(trunk, Some(action), Some(2), &operations::forks(20, None))? {
            acted(&mut forest, way, way as i32 & 7, 1.0);
            forest.finish(way, Finish::default())?;
        }
        forest.abort();
        Ok(forest)
    };
    let mut forest = grown()?;
    let mut calls = 0;
    let whole = forest.take_groups(false).freeze(&mut || {
        calls += 1;
        Ok(())
    })?;
    assert!(calls > 2 * whole.trajectories().num_rows(), "{calls} calls");
    forest = grown()?;
    for stop in 0..calls {
        let groups = forest.take_groups(false);
        let mut left = stop;
        let frozen = groups.freeze(&mut || {
            left = left.checked_sub(1).ok_or_else(|| Error::internal("interrupted"))?;
            Ok(())
        });
        assert!(message(frozen).contains("interrupted"), "{stop}");
        forest.restore(groups);
    }
    assert_eq!(without_time(&forest.freeze()?), without_time(&whole));
    Ok(())
}
