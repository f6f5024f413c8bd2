use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::forest::{Finish, Forest, NewNode, StepOutcome};

/// Groups of `members` trajectories each, whose tokens identify them.
fn grown(groups: u32, members: u32) -> Batch {
    let mut forest = Forest::new(0, 1);
    for group in 0..groups {
        forest.add_group(group, "task").unwrap();
        for member in 0..members {
            let trajectory = forest.start(group, member).unwrap();
            forest.append(trajectory, NewNode::prompt(vec![group as i32])).unwrap();
            let tokens = vec![100 * group as i32 + member as i32; 2];
            forest.append(trajectory, NewNode::action(tokens, vec![-0.5; 2])).unwrap();
            forest.step(trajectory, &StepOutcome::default()).unwrap();
            forest.finish(trajectory, Finish { reward: Some(1.0), ..Finish::default() }).unwrap();
        }
    }
    forest.freeze().unwrap()
}

fn column(batch: &Batch, table: Table, name: &str) -> Vec<i64> {
    i64s(batch.table(table), name).unwrap().values().to_vec()
}

fn tokens(batch: &Batch) -> Vec<i32> {
    let Numbers::I32(tokens) = batch.column("token", Level::Token).unwrap() else { panic!("tokens are i32") };
    tokens
}

/// The batch as a store returns it: without new rows.
fn stored(batch: &Batch) -> Batch {
    batch.with_base(batch.next_ids().unwrap())
}

#[test]
fn only_new_rows_move() {
    let first = NextIds { node: 10, group: 20, trajectory: 30, draw: 40 };
    let batch = grown(2, 1).rebase(first).unwrap();
    assert_eq!(column(&batch, Table::Nodes, "node_id"), [10, 11, 12, 13]);
    assert_eq!(column(&batch, Table::Trajectories, "trajectory_id"), [30, 31]);
    assert_eq!(column(&batch, Table::Draws, "group_id"), [20, 21]);
    assert_eq!(batch.next_ids().unwrap(), NextIds { node: 14, group: 22, trajectory: 32, draw: 42 });
    // A second move moves new rows again; rows that are stored by then stay.
    assert_eq!(column(&batch.rebase(NextIds::default()).unwrap(), Table::Nodes, "parent_id")[1], 0);
    let joined = Batch::concat(&[stored(&batch), grown(1, 1)]).unwrap();
    let moved = joined.rebase(NextIds { node: 50, group: 50, trajectory: 50, draw: 50 }).unwrap();
    assert_eq!(column(&moved, Table::Nodes, "node_id"), [10, 11, 12, 13, 50, 51]);
    assert_eq!(column(&moved, Table::Draws, "draw_id"), [40, 41, 50]);
    assert_eq!(moved.new_rows(Table::Nodes).unwrap().num_rows(), 2);
    assert_eq!(tokens(&moved), [0, 0, 100, 100, 0, 0]);
}

#[test]
fn a_stored_row_is_kept_once_whoever_brings_it() {
    let old = stored(&grown(3, 1)).select_draws(&[]).unwrap();
    let joined = Batch::concat(&[old.clone(), grown(1, 2), old]).unwrap();
    assert_eq!(column(&joined, Table::Trajectories, "trajectory_id"), [0, 1, 2, 3, 4]);
    assert_eq!(column(&joined, Table::Nodes, "node_id"), (0..9).collect::<Vec<_>>());
    assert_eq!(joined.new_rows(Table::Trajectories).unwrap().num_rows(), 2);
}

#[test]
fn draws_that_are_stored_cannot_be_trained_twice_over() {
    let old = stored(&grown(1, 1));
    let error = Batch::concat(&[old.clone(), old]).unwrap_err();
    assert!(error.to_string().contains("draw 0 is in two of the parts"), "{error}");
}

#[test]
fn a_trajectory_is_drawn_into_several_groups() {
    let batch = grown(2, 2).with_column("seen", Level::NodeToken, Numbers::U8(vec![1; 10])).unwrap();
    let batch = batch.with_column("advantage", Level::Draw, Numbers::F32(vec![0.5; 4])).unwrap();
    let new = NewDraws {
        trajectory_ids: &[3, 0, 3],
        group_ids: Some(&[0, 0, 7]),
        source: "failed",
        probability: Some(&[0.5, 0.25, 0.125]),
        old_logprob: "none",
        reason: Some("again"),
        iteration: None,
    };
    let drawn = batch.draw(&new).unwrap();
    assert_eq!(column(&drawn, Table::Draws, "draw_id"), (0..7).collect::<Vec<_>>());
    assert_eq!(column(&drawn, Table::Draws, "group_id"), [0, 0, 1, 1, 0, 0, 7]);
    assert_eq!(i32s(drawn.draws(), "position").unwrap().values()[4..], [4, 5, 6]);
    assert_eq!(tokens(&drawn)[8..], [101, 101, 0, 0, 101, 101]);
    assert_eq!(drawn.next_ids().unwrap().group, 8);
    assert!(drawn.has("seen", Level::NodeToken) && !drawn.has("advantage", Level::Draw));
    let wrong = [
        (NewDraws { trajectory_ids: &[9, 0, 3], ..new }, "trajectory_ids[0] is 9"),
        (NewDraws { group_ids: Some(&[1]), ..new }, "group_ids has 1 values for 3"),
        (NewDraws { source: "old", ..new }, "source is \"old\""),
        (NewDraws { old_logprob: "x", ..new }, "old_logprob is \"x\""),
    ];
    for (wrong, message) in wrong {
        assert!(batch.draw(&wrong).unwrap_err().to_string().contains(message));
    }
    let none =
        Batch::empty().unwrap().draw(&NewDraws { trajectory_ids: &[], group_ids: None, probability: None, ..new });
    assert!(none.unwrap_err().to_string().contains("iteration=…"));
}

#[test]
fn a_batch_survives_as_bytes() {
    let blobs = Arc::new(BTreeMap::from([([3; 32], Arc::from(b"content".as_slice()))]));
    let batch = stored(&grown(1, 2)).with_blobs(blobs);
    let batch = batch.with_column("advantage", Level::Draw, Numbers::F32(vec![0.5, 1.0])).unwrap();
    let parts: Vec<arrow_buffer::Buffer> = batch.to_bytes().unwrap().into_iter().map(Into::into).collect();
    let found = Batch::from_bytes(&parts).unwrap();
    assert_eq!((found.base(), found.blobs()), (batch.base(), batch.blobs()));
    assert_eq!(found.tables, batch.tables);
    assert_eq!(found.column("advantage", Level::Draw).unwrap(), Numbers::F32(vec![0.5, 1.0]));
    for count in 0..parts.len() {
        assert!(Batch::from_bytes(&parts[..count]).is_err(), "{count} parts");
    }
}

proptest! {
    /// For any joined parts, new rows follow each other, stored rows appear once, and draws keep their tokens and their
    /// computed columns, in the order of the parts.
    #[test]
    fn joined_draws_keep_what_they_had(parts in prop::collection::vec((1_u32..3, 1_u32..3, any::<bool>()), 1..5)) {
        let old = stored(&grown(2, 2));
        let mut made = Vec::new();
        for (index, (groups, members, replays)) in parts.into_iter().enumerate() {
            let mut part = grown(groups, members);
            if replays {
                let drawn = old.select_draws(&[]).unwrap();
                part = Batch::concat(&[part, drawn]).unwrap();
                let ids = [index as i64 % 4];
                let new = NewDraws {
                    trajectory_ids: &ids, group_ids: None, source: "replay", probability: None,
                    old_logprob: "behaviour", reason: None, iteration: None,
                };
                part = part.draw(&new).unwrap();
            }
            let names = (0..part.num_draws()).map(|draw| (10 * index + draw) as i64).collect();
            let part = part.with_column("name", Level::Draw, Numbers::I64(names)).unwrap();
            let values = part.column("token", Level::NodeToken).unwrap();
            made.push(part.with_column("copy", Level::NodeToken, values).unwrap());
        }
        let joined = Batch::concat(&made).unwrap();
        let expected: Vec<i32> = made.iter().flat_map(tokens).collect();
        prop_assert_eq!(tokens(&joined), expected);
        prop_assert_eq!(joined.column("copy", Level::NodeToken).unwrap(), joined.column("token", Level::NodeToken).unwrap());
        let names: Vec<i64> = made.iter().flat_map(|part| match part.column("name", Level::Draw).unwrap() {
            Numbers::I64(names) => names,
            other => panic!("{other:?}"),
        }).collect();
        prop_assert_eq!(joined.column("name", Level::Draw).unwrap(), Numbers::I64(names));
        let ids = column(&joined, Table::Trajectories, "trajectory_id");
        prop_assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
        let new: usize = made.iter().map(|part| part.new_rows(Table::Nodes).unwrap().num_rows()).sum();
        prop_assert_eq!(joined.new_rows(Table::Nodes).unwrap().num_rows(), new);
    }
}
