//! Tests of token columns: recorded rows compared with a map from each token to its first row.

use super::*;
use crate::token_columns::TokenRows;

/// A trajectory, its tokens, and its nodes with the number of tokens up to their ends.
type Path = (Handle, Vec<i32>, Vec<(Handle, usize)>);

/// Rows of consecutive tokens, with values derived from `number`.
fn rows(dtype: usize, width: usize, begin: Option<usize>, count: usize, number: usize) -> TokenRows {
    let values = (0..count * width).map(|place| (number * 7 + place) % 250);
    let values = match dtype {
        0 => Numbers::U8(values.map(|value| value as u8).collect()),
        1 => Numbers::U16(values.map(|value| value as u16 + 300).collect()),
        2 => Numbers::I32(values.map(|value| value as i32 + 70_000).collect()),
        _ => Numbers::F32(values.map(|value| value as f32 / 4.0).collect()),
    };
    TokenRows { begin, width, values }
}

fn named(rows: TokenRows) -> BTreeMap<String, TokenRows> {
    BTreeMap::from([("experts".to_owned(), rows)])
}

/// A row as text, so that rows of all types compare alike.
fn row(values: &Numbers, place: usize, width: usize) -> String {
    format!("{:?}", values.gather(place * width..(place + 1) * width))
}

/// Return the rows of a batch by token, for the tokens that have one.
fn found(batch: &Batch) -> BTreeMap<i32, String> {
    let Some((values, width)) = batch.wide_column("experts", Level::NodeToken) else { return BTreeMap::new() };
    let Numbers::I32(tokens) = batch.column("token", Level::NodeToken).unwrap() else { panic!("tokens are i32") };
    let Numbers::U8(known) = batch.column("experts.known", Level::NodeToken).unwrap() else { panic!("a mask is u8") };
    assert_eq!((tokens.len() * width, tokens.len()), (values.len(), known.len()));
    let known = known.iter().enumerate().filter(|&(_, &known)| known == 1);
    known.map(|(place, _)| (tokens[place], row(&values, place, width))).collect()
}

proptest! {
    #[test]
    fn a_token_has_the_row_that_was_recorded_first(
        dtype in 0_usize..4,
        width in 1_usize..4,
        steps in prop::collection::vec((0_usize..6, 0_usize..1000, 1_usize..4, 0_usize..1000), 1..40),
    ) {
        let mut forest = Forest::new(0, 0);
        forest.add_group(0, "task").unwrap();
        // Each token is unique.
        let mut paths: Vec<Path> = Vec::new();
        let mut first: BTreeMap<i32, String> = BTreeMap::new();
        let (mut next, mut members) = (10, 0);
        for (number, &(what, choice, length, place)) in steps.iter().enumerate() {
            let begins = what == 0 || paths.is_empty();
            if begins {
                paths.push((forest.start(0, members).unwrap(), Vec::new(), Vec::new()));
                members += 1;
            }
            let index = if begins { paths.len() - 1 } else { choice % paths.len() };
            let (handle, mut tokens, mut nodes) = paths[index].clone();
            if what == 1 && !begins {
                let (node, end) = nodes[place % nodes.len()];
                let start = nodes.iter().map(|&(_, end)| end).filter(|&other| other < end).max().unwrap_or(0);
                let used = 1 + choice % (end - start);
                let fork = forest.fork(handle, Some(node), Some(used as u32)).unwrap();
                nodes.retain(|&(_, other)| other < end);
                nodes.push((node, start + used));
                tokens.truncate(start + used);
                paths.push((fork, tokens, nodes));
                continue;
            }
            let start = tokens.len();
            let new = if begins {
                NewNode::prompt(vec![1, 2, 3])
            } else {
                next += length as i32;
                let fresh: Vec<i32> = (next - length as i32..next).collect();
                if what % 2 == 0 { NewNode::observation(fresh) } else { NewNode::action(fresh, vec![-0.5; length]) }
            };
            tokens.extend(&new.tokens);
            let given = match what {
                2 | 3 => None,
                4 => Some(rows(dtype, width, None, new.tokens.len(), number)),
                _ => {
                    let begin = place % (tokens.len() + 1);
                    Some(rows(dtype, width, Some(begin), (choice + 1) % (tokens.len() - begin + 1), number))
                }
            };
            for (offset, token) in given.iter().flat_map(|given| {
                tokens[given.begin.unwrap_or(start)..].iter().take(given.values.len() / width).enumerate()
            }) {
                let values = &given.as_ref().unwrap().values;
                first.entry(*token).or_insert_with(|| row(values, offset, width));
            }
            let given = given.map_or_else(BTreeMap::new, named);
            let node = forest.append_with(handle, new, &given).unwrap();
            nodes.push((node, tokens.len()));
            paths[index] = (handle, tokens, nodes);
        }
        for (handle, ..) in &paths {
            let finish = Finish { status: crate::schema::Status::Aborted, ..Finish::default() };
            forest.finish(*handle, finish).unwrap();
        }
        let batch = forest.freeze().unwrap();
        prop_assert_eq!(&found(&batch), &first);
        let parts: Vec<_> = batch.to_bytes().unwrap().into_iter().map(arrow_buffer::Buffer::from).collect();
        let again = Batch::from_bytes(&parts).unwrap();
        prop_assert_eq!(again.nodes(), batch.nodes());
        // Joined with a batch without the column, in either order.
        let mut plain = Forest::new(0, 0);
        plain.add_group(0, "task").unwrap();
        let handle = plain.start(0, 0).unwrap();
        plain.append(handle, NewNode::prompt(vec![5])).unwrap();
        plain.append(handle, NewNode::action(vec![6], vec![-0.5])).unwrap();
        plain.finish(handle, Finish::default()).unwrap();
        let plain = plain.freeze().unwrap();
        for parts in [[batch.clone(), plain.clone()], [plain, batch]] {
            prop_assert_eq!(&found(&Batch::concat(&parts).unwrap()), &first);
        }
    }
}

/// A rollout with a prompt and an action; rows are given with the action.
fn rolled_out(prompt: Vec<i32>, given: TokenRows) -> Result<Batch> {
    let mut forest = Forest::new(0, 0);
    forest.add_group(0, "task")?;
    let trajectory = forest.start(0, 0)?;
    forest.append(trajectory, NewNode::prompt(prompt))?;
    forest.append_with(trajectory, NewNode::action(vec![8, 9], vec![-0.5, -0.5]), &named(given))?;
    forest.finish(trajectory, Finish::default())?;
    forest.freeze()
}

#[test]
fn rows_that_do_not_fit_are_refused_before_anything_is_stored() {
    let mut forest = Forest::new(0, 0);
    forest.add_group(0, "task").unwrap();
    let trajectory = forest.start(0, 0).unwrap();
    forest.append_with(trajectory, NewNode::prompt(vec![1, 2]), &named(rows(0, 3, None, 2, 0))).unwrap();
    let wide = |values: Numbers, width| TokenRows { begin: None, width, values };
    let cases = [
        (rows(0, 2, None, 1, 0), "uint8 of width 2, but earlier rows are uint8 of width 3"),
        (rows(1, 3, None, 1, 0), "uint16 of width 3, but earlier rows are uint8 of width 3"),
        (rows(0, 3, None, 2, 0), "2 rows for 1 tokens"),
        (rows(0, 3, Some(1), 3, 0), "3 rows from position 1 on, but the path has 3 tokens"),
        (rows(0, 3, Some(usize::MAX), 1, 0), "but the path has 3 tokens"),
        (wide(Numbers::F64(vec![0.0; 3]), 3), "is float64; give uint8"),
        (wide(Numbers::U8(vec![0; 4]), 3), "4 values in rows of width 3"),
        (wide(Numbers::U8(vec![]), 0), "in rows of width 0"),
    ];
    for (given, message) in cases {
        let error = forest.append_with(trajectory, NewNode::action(vec![7], vec![-0.5]), &named(given)).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    }
    for name in ["tokens", "", "reward", "a.b", "node_id", "token", "advantage"] {
        let given = BTreeMap::from([(name.to_owned(), rows(0, 3, None, 1, 0))]);
        let error = forest.append_with(trajectory, NewNode::action(vec![7], vec![-0.5]), &given).unwrap_err();
        assert!(error.to_string().contains("another name"), "{error}");
    }
    forest.append_with(trajectory, NewNode::action(vec![7], vec![-0.5]), &named(rows(0, 3, Some(2), 1, 5))).unwrap();
    forest.finish(trajectory, Finish::default()).unwrap();
    let batch = forest.freeze().unwrap();
    assert_eq!(found(&batch).len(), 3);
    assert_eq!(batch.nodes().num_rows(), 2);
    let tokens = batch.wide_column("experts", Level::Token).unwrap();
    assert_eq!(tokens, (Numbers::U8(vec![35, 36, 37]), 3));
    assert!(batch.has("experts", Level::Token) && batch.has("experts.known", Level::NodeToken));
    assert!(!batch.has("experts", Level::Draw) && !batch.has("other.known", Level::Token));
    let other = rolled_out(vec![1], rows(0, 2, Some(0), 3, 0)).unwrap();
    assert!(Batch::concat(&[batch, other]).unwrap_err().to_string().contains("uint8 of width 3 in one part"));
}

#[test]
fn prompts_that_begin_alike_keep_the_rows_of_their_own_tokens() {
    let mut forest = Forest::new(0, 0);
    forest.add_group(0, "task").unwrap();
    for (member, prompt) in [vec![1, 2, 3], vec![1, 2, 4, 5]].into_iter().enumerate() {
        let trajectory = forest.start(0, member as u32).unwrap();
        let length = prompt.len();
        forest.append(trajectory, NewNode::prompt(prompt)).unwrap();
        let given = rows(0, 1, Some(0), length, 10 * (1 + member));
        forest.append_with(trajectory, NewNode::action(vec![7 + member as i32], vec![-0.5]), &named(given)).unwrap();
        forest.finish(trajectory, Finish::default()).unwrap();
    }
    let batch = forest.freeze().unwrap();
    // 1, 2, 3 and an action; 4, 5 after 1, 2, and an action. Actions have no row.
    let rows: Vec<_> = found(&batch).into_iter().collect();
    let expected = [(1, 70), (2, 71), (3, 72), (4, 142), (5, 143)];
    assert_eq!(rows, expected.map(|(token, value): (i32, u8)| (token, format!("{:?}", Numbers::U8(vec![value])))));
}

#[test]
fn stored_nodes_and_copies_get_no_rows() {
    let stored = rolled_out(vec![1, 2], rows(0, 1, Some(0), 2, 0)).unwrap();
    let before = found(&stored);
    assert_eq!(before.len(), 2);
    let mut forest = Forest::new(1, 0);
    forest.add_group(0, "task").unwrap();
    let adopted = forest.adopt(0, &stored, 0, None).unwrap();
    let fork = forest.fork(adopted, None, None).unwrap();
    let observed = forest.append(fork, NewNode::observation(vec![20, 21])).unwrap();
    forest.append_with(fork, NewNode::action(vec![30], vec![-0.5]), &named(rows(0, 1, Some(0), 7, 3))).unwrap();
    let wrong = forest.append_with(fork, NewNode::action(vec![31], vec![-0.5]), &named(rows(0, 2, None, 1, 3)));
    assert!(wrong.is_err(), "the width is that of the stored rows");
    let copy = forest.splice(fork, (Some(observed), Some(1)), fork, (observed, 1)).unwrap();
    for trajectory in [fork, copy] {
        forest.finish(trajectory, Finish::default()).unwrap();
    }
    let batch = forest.freeze().unwrap();
    let known: Vec<i32> = found(&batch).into_keys().collect();
    assert_eq!(known, [1, 2, 20, 21, 30]);
    assert!(before.iter().all(|(token, row)| found(&batch)[token] == *row));
}
