//! Random programs compared with a model of plain lists, and with themselves in other orders of arrival.

use std::collections::VecDeque;

use super::operations::forks;
use super::*;

/// Next operation of a trajectory. Numbers are taken modulo the number of choices.
#[derive(Clone, Debug)]
enum Turn {
    Act(u8, u8),
    Observe(u8),
    Pay(u8),
    /// Fork at a token of the current context into several branches; each plays its own part of the remaining turns.
    Fork(u16, u8),
    Rollback(u16),
    /// Keep a prefix of the context and append other tokens.
    Rewrite(u16, u8),
    /// Join a prefix of the trajectory with its own context from a token on.
    Splice(u16, u16),
    Untrain,
    Prune,
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        6 => (1..4_u8, any::<u8>()).prop_map(|(count, seed)| Turn::Act(count, seed)),
        3 => (1..4_u8).prop_map(Turn::Observe),
        3 => any::<u8>().prop_map(Turn::Pay),
        3 => (any::<u16>(), 1..3_u8).prop_map(|(at, ways)| Turn::Fork(at, ways)),
        1 => any::<u16>().prop_map(Turn::Rollback),
        2 => (any::<u16>(), 0..4_u8).prop_map(|(at, count)| Turn::Rewrite(at, count)),
        1 => (any::<u16>(), any::<u16>()).prop_map(|(at, from)| Turn::Splice(at, from)),
        1 => Just(Turn::Untrain),
        1 => Just(Turn::Prune),
    ]
}

/// A step: its context, the begin and end of its action, and its reward.
type ModelStep = (usize, usize, usize, Option<f32>);

/// A trajectory as plain lists.
#[derive(Clone, Debug, Default)]
struct Model {
    contexts: Vec<Vec<i32>>,
    /// Nodes of each context, each with its begin and the end of its used tokens.
    nodes: Vec<Vec<(Handle, usize, usize)>>,
    steps: Vec<ModelStep>,
    open: Option<usize>,
    trained: bool,
    drawn: bool,
}

impl Model {
    fn path(&mut self) -> &mut Vec<i32> {
        self.contexts.last_mut().unwrap()
    }

    fn len(&self) -> usize {
        self.contexts.last().unwrap().len()
    }

    fn close(&mut self, paid: Option<f32>) {
        if let Some(open) = self.open.take() {
            self.steps.push((self.contexts.len() - 1, open, self.len(), paid));
        }
    }

    fn append(&mut self, node: Handle, tokens: &[i32], action: bool) {
        if action {
            self.open = self.open.or(Some(self.len()));
        } else {
            self.close(None);
        }
        let begin = self.len();
        self.path().extend(tokens);
        self.nodes.last_mut().unwrap().push((node, begin, begin + tokens.len()));
    }

    /// Return a fork: the current context up to a token, as another trajectory.
    fn prefix(&self, end: usize) -> Self {
        let last = self.contexts.len() - 1;
        let mut child = Self { trained: true, drawn: true, ..self.clone() };
        child.path().truncate(end);
        let nodes = child.nodes.last_mut().unwrap();
        nodes.retain(|&(_, begin, _)| begin < end);
        if let Some(node) = nodes.last_mut() {
            node.2 = node.2.min(end);
        }
        child.steps.retain(|&(context, _, stop, _)| context < last || stop <= end);
        let cut = self.steps.iter().find(|&&(context, begin, stop, _)| context == last && begin < end && end < stop);
        child.open = cut.map(|cut| cut.1).or(self.open.filter(|&open| open < end));
        child
    }

    /// Return the node of the current context that holds the token before a position, and the number of its tokens
    /// before it.
    fn at(&self, position: usize) -> (Handle, u32) {
        let nodes = self.nodes.last().unwrap();
        let &(node, begin, _) = nodes.iter().find(|&&(_, begin, end)| begin < position && position <= end).unwrap();
        (node, (position - begin) as u32)
    }
}

struct Player {
    handle: Handle,
    model: Model,
    turns: VecDeque<Turn>,
    name: String,
}

/// Keep the first `kept` tokens of the context and append `count` others.
fn rewrite(forest: &mut Forest, handle: Handle, model: &mut Model, kept: usize, count: u8) {
    let mut tokens = model.path()[..kept].to_vec();
    tokens.extend(vec![6; usize::from(count)]);
    let shared = model.path().iter().zip(&tokens).take_while(|(a, b)| a == b).count();
    assert_eq!(forest.rewrite(handle, &tokens, &[], None).unwrap() as usize, shared);
    model.close(None);
    let (nodes, path) = (model.nodes.last().unwrap().clone(), model.path().clone());
    if shared < path.len() {
        model.contexts.push(path);
        model.nodes.push(nodes);
        model.path().truncate(shared);
        let nodes = model.nodes.last_mut().unwrap();
        nodes.retain(|&(_, begin, _)| begin < shared);
        if let Some(node) = nodes.last_mut() {
            node.2 = node.2.min(shared);
        }
    }
    if shared < tokens.len() {
        let frontier = forest.frontier(None).unwrap();
        let row = frontier.trajectory.iter().position(|&other| other == handle).unwrap();
        model.append(frontier.node[row], &tokens[shared..], false);
    }
    assert_eq!(forest.tokens(handle).unwrap(), tokens);
}

/// Join the first `end` tokens of a trajectory with its own context from token `from` on.
fn splice(forest: &mut Forest, handle: Handle, model: &mut Model, end: usize, from: usize) -> (Handle, Model) {
    let (node, used) = model.at(end);
    let &(first, begin, _) = model.nodes[0].iter().find(|&&(_, begin, end)| begin <= from && from < end).unwrap();
    let start = (from - begin) as u32;
    let spliced = forest.splice(handle, (Some(node), Some(used)), handle, (first, start)).unwrap();
    let copied = model.path()[from..].to_vec();
    let mut child = model.prefix(end);
    // Kinds of copied tokens follow from the steps: an action token belongs to a closed or open step.
    let acted = |position: usize| {
        let mut spans = model.steps.iter().map(|step| (step.1, step.2));
        spans.any(|(begin, end)| begin <= position && position < end) || model.open.is_some_and(|open| open <= position)
    };
    let ends = |position: usize| model.steps.iter().find(|step| step.2 == position);
    for (token, position) in copied.iter().zip(from..) {
        child.append(-1, &[*token], acted(position));
        if let Some(step) = ends(position + 1) {
            child.close(step.3);
        }
    }
    assert_eq!(forest.tokens(spliced).unwrap(), child.contexts[0]);
    (spliced, child)
}

/// Play the programs of the members. `choices` determines the member that takes each turn, and the part that each
/// branch plays: everything that may depend on the order of arrival.
fn play(programs: &[Vec<Turn>], choices: &[u8]) -> (Batch, BTreeMap<String, Model>) {
    let mut choices = choices.iter().copied().cycle();
    let mut forest = Forest::new(1, 2);
    forest.add_group(0, "task").unwrap();
    let mut players = Vec::new();
    for (member, program) in (0..).zip(programs) {
        let handle = forest.start(0, member).unwrap();
        let prompt = vec![1, 2, 3 + (member % 2) as i32];
        let node = forest.append(handle, NewNode::prompt(prompt.clone())).unwrap();
        let mut model =
            Model { contexts: vec![vec![]], nodes: vec![vec![]], drawn: true, trained: true, ..Model::default() };
        model.append(node, &prompt, false);
        players.push(Player { handle, model, turns: program.iter().cloned().collect(), name: member.to_string() });
    }
    let mut ended = BTreeMap::new();
    while !players.is_empty() {
        let who = usize::from(choices.next().unwrap()) % players.len();
        let Some(turn) = players[who].turns.pop_front() else {
            let Player { handle, mut model, name, .. } = players.swap_remove(who);
            let info = Some(format!("{name:?}"));
            if model.drawn && (model.open.is_some() || !model.steps.is_empty()) {
                forest.finish(handle, Finish { info, ..Finish::default() }).unwrap();
            } else {
                model.drawn = false;
                forest.finish(handle, Finish { info, status: Status::Aborted, ..Finish::default() }).unwrap();
            }
            model.close(None);
            ended.insert(name, model);
            continue;
        };
        let mut new = Vec::new();
        let Player { handle, model, turns, name } = &mut players[who];
        let handle = *handle;
        let place = |number: u16, length: usize| 1 + usize::from(number) % length;
        match turn {
            Turn::Act(count, seed) => {
                let tokens: Vec<i32> = (0..i32::from(count)).map(|token| 10 + token * 7 + i32::from(seed)).collect();
                let node = NewNode::action(tokens.clone(), vec![-0.5; tokens.len()]);
                model.append(forest.append(handle, node).unwrap(), &tokens, true);
            }
            Turn::Observe(count) => {
                let tokens = vec![5; usize::from(count)];
                model.append(forest.append(handle, NewNode::observation(tokens.clone())).unwrap(), &tokens, false);
            }
            Turn::Pay(amount) => {
                if model.open.is_some() {
                    let paid = Some(f32::from(amount));
                    forest.step(handle, &StepOutcome { reward: paid, ..StepOutcome::default() }).unwrap();
                    model.close(paid);
                }
            }
            Turn::Fork(at, ways) => {
                // A fork at a node of several contexts is in the earliest, but the model covers the current one only.
                let end = if model.contexts.len() > 1 { model.len() } else { place(at, model.len()) };
                let (node, used) = if end == model.len() { (None, None) } else { Some(model.at(end)).unzip() };
                let mut branches = forest.fork_many(handle, node, used, &forks(u32::from(ways), None)).unwrap();
                for way in 0..ways {
                    // The order of arrival determines the part that each branch plays.
                    let branch = branches.swap_remove(usize::from(choices.next().unwrap()) % branches.len());
                    let rest =
                        turns.iter().filter(|turn| !matches!(turn, Turn::Fork(..))).skip(usize::from(way)).cloned();
                    let (model, name) = (model.prefix(end), format!("{name}/{}:{way}", turns.len()));
                    new.push(Player { handle: branch, model, turns: rest.collect(), name });
                }
            }
            Turn::Rollback(at) => {
                if model.contexts.len() == 1 {
                    let end = place(at, model.len());
                    let (node, used) = model.at(end);
                    let back = forest.rollback(handle, node, Some(used)).unwrap();
                    let (model, name) = (model.prefix(end), format!("{name}/{}b", turns.len()));
                    new.push(Player { handle: back, model, turns: std::mem::take(turns), name });
                }
            }
            Turn::Rewrite(at, count) => rewrite(&mut forest, handle, model, place(at, model.len()), count),
            Turn::Splice(at, from) => {
                if model.contexts.len() == 1 {
                    let (end, from) = (place(at, model.len()), usize::from(from) % model.len());
                    let (spliced, model) = splice(&mut forest, handle, model, end, from);
                    let (name, turns) = (format!("{name}/{}s", turns.len()), VecDeque::new());
                    new.push(Player { handle: spliced, model, turns, name });
                }
            }
            Turn::Untrain => {
                forest.prune(handle, "untrained", true).unwrap();
                model.trained = false;
            }
            Turn::Prune => {
                forest.prune(handle, name, false).unwrap();
                model.drawn = false;
                turns.clear();
            }
        }
        // A pruned trajectory (also by a rollback) takes no more turns.
        let has_stopped = forest.frontier(None).unwrap().trajectory.iter().all(|&running| running != handle);
        if has_stopped {
            let Player { mut model, name, .. } = players.swap_remove(who);
            model.close(None);
            model.drawn = false;
            ended.insert(name, model);
        }
        players.extend(new);
    }
    (forest.freeze().unwrap(), ended)
}

/// Return the name of each drawn trajectory, read from its `info`.
fn names(batch: &Batch) -> Vec<String> {
    let infos = batch.trajectories()["info"].as_string::<i32>();
    let layout: Vec<i64> = batch.draws()["trajectory_id"].as_primitive::<Int64Type>().values().to_vec();
    let name = |&id: &i64| {
        let info: serde_json::Value = serde_json::from_str(infos.value(id as usize)).unwrap();
        let own = if info.is_string() { &info } else { &info["info"] };
        own.as_str().unwrap().to_owned()
    };
    layout.iter().map(name).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn programs_equal_plain_lists(
        programs in prop::collection::vec(prop::collection::vec(turn(), 0..14), 1..4),
        choices in prop::collection::vec(any::<u8>(), 1..40),
    ) {
        let (batch, models) = play(&programs, &choices);
        let (steps, offsets) = (batch.offsets(Level::Step)?, batch.offsets(Level::Token)?);
        let Numbers::I32(tokens) = batch.column("token", Level::Token)? else { panic!("tokens are i32") };
        let Numbers::I32(positions) = batch.column("position", Level::Token)? else { panic!("positions are i32") };
        let Numbers::U8(trainable) = batch.column("trainable", Level::Token)? else { panic!("a mask is u8") };
        let Numbers::F32(rewards) = batch.column("reward", Level::Step)? else { panic!("rewards are f32") };
        let names = names(&batch);
        let mut drawn: Vec<&String> = models.iter().filter(|(_, model)| model.drawn).map(|(name, _)| name).collect();
        drawn.sort();
        let mut found: Vec<&String> = names.iter().collect();
        found.sort();
        prop_assert_eq!(found, drawn);
        for (draw, name) in names.iter().enumerate() {
            let model = &models[name];
            let rows = steps[draw] as usize..steps[draw + 1] as usize;
            prop_assert_eq!(rows.len(), model.steps.len(), "{}", name);
            for (row, &(context, begin, end, paid)) in rows.zip(&model.steps) {
                let part = offsets[row] as usize..offsets[row + 1] as usize;
                prop_assert_eq!(&tokens[part.clone()], &model.contexts[context][begin..end]);
                prop_assert_eq!(positions[part.clone()].to_vec(), (begin as i32..end as i32).collect::<Vec<_>>());
                prop_assert_eq!(trainable[part].iter().any(|&mask| mask != 0), model.trained);
                prop_assert_eq!(Some(rewards[row]).filter(|reward| !reward.is_nan()), paid);
            }
        }
        // Every trained token is in one sequence, after the context in which it was sampled.
        let draws: Vec<i64> = (0..batch.num_draws() as i64).collect();
        let mut seen = vec![0; tokens.len()];
        for pack in batch.plan(&PlanOptions { draws: &draws, max_tokens: 10_000, ..PlanOptions::default() })?.packs()? {
            for (&row, &token) in pack.source_row.iter().zip(&pack.token) {
                let (row, token) = (row as usize, token as usize);
                seen[token] += 1;
                let sequence = pack.cu_seqlens.partition_point(|&begin| begin as usize <= row) - 1;
                let begin = pack.cu_seqlens[sequence] as usize;
                prop_assert_eq!(row - begin, positions[token] as usize - 1);
                let model = &models[&names[pack.draw[sequence] as usize]];
                let before: Vec<i32> = pack.input_ids[begin..=row].iter().map(|&id| id as i32).collect();
                prop_assert!(model.contexts.iter().any(|context| context.starts_with(&before)));
            }
        }
        prop_assert_eq!(seen, trainable.iter().map(|&mask| i32::from(mask)).collect::<Vec<_>>());
    }

    #[test]
    fn no_order_of_arrival_matters(
        programs in prop::collection::vec(prop::collection::vec(turn(), 0..12), 1..4),
        choices in prop::collection::vec(any::<u8>(), 1..40),
        others in prop::collection::vec(any::<u8>(), 1..40),
    ) {
        let (one, other) = (play(&programs, &choices).0, play(&programs, &others).0);
        prop_assert_eq!(without_time(&one), without_time(&other));
    }

    #[test]
    fn adopted_trajectories_go_on_where_they_stopped(
        programs in prop::collection::vec(prop::collection::vec(turn(), 0..12), 1..4),
        choices in prop::collection::vec(any::<u8>(), 1..40),
    ) {
        let (stored, _) = play(&programs, &choices);
        let drawn = stored.draws()["trajectory_id"].as_primitive::<Int64Type>().values().to_vec();
        let mut later = Forest::new(2, 3);
        later.add_group(0, "task")?;
        for &id in &drawn {
            let adopted = later.adopt(0, &stored, id, Some(crate::schema::Source::Replay))?;
            let resumed = later.fork(adopted, None, None)?;
            later.append(resumed, NewNode::observation(vec![7]))?;
            later.append(resumed, NewNode::action(vec![8, 9], vec![-0.5, -0.5]))?;
            later.finish(resumed, Finish::default())?;
        }
        let batch = later.freeze()?;
        if drawn.is_empty() {
            prop_assert_eq!(batch.num_draws(), 0);
            return Ok(());
        }
        // Adopted trajectories are unchanged: the same rows, the same training batch.
        let count = drawn.len();
        let adopted = batch.select_draws(&(0..count as i64).collect::<Vec<_>>())?;
        for name in ["token", "position", "trainable"] {
            prop_assert_eq!(adopted.column(name, Level::Token)?, stored.column(name, Level::Token)?);
        }
        for (name, level) in [("reward", Level::Step), ("behaviour_logprob", Level::Token)] {
            let bits = |batch: &Batch| -> Result<Vec<u32>> {
                let Numbers::F32(values) = batch.column(name, level)? else { panic!("{name} is f32") };
                Ok(values.into_iter().map(f32::to_bits).collect())
            };
            prop_assert_eq!(bits(&adopted)?, bits(&stored)?);
        }
        prop_assert_eq!(adopted.keys("state_key", Level::Step)?, stored.keys("state_key", Level::Step)?);
        // Continued trajectories have the same steps, and one more.
        let (steps, offsets) = (batch.offsets(Level::Step)?, batch.offsets(Level::Token)?);
        let Numbers::I32(tokens) = batch.column("token", Level::Token)? else { panic!("tokens are i32") };
        let of = |draw: usize| &tokens[offsets[steps[draw] as usize] as usize..offsets[steps[draw + 1] as usize] as usize];
        let Numbers::I64(ids) = batch.column("trajectory_id", Level::Draw)? else { panic!("ids are i64") };
        let Numbers::I64(parents) = Numbers::from_array("parent", &batch.trajectories()["parent_trajectory"].slice(
            batch.trajectories().num_rows() - count,
            count,
        ))? else { panic!("ids are i64") };
        for (draw, parent) in (count..).zip(parents) {
            let old = ids[..count].iter().position(|&id| id == parent).unwrap();
            prop_assert_eq!(of(draw), [of(old), &[8, 9]].concat());
        }
        let kept: Vec<i64> = batch.nodes()["node_id"].as_primitive::<Int64Type>().values().iter().copied()
            .filter(|&id| id < batch.base().node).collect();
        let rows = |batch: &Batch, table: Table, key: &str, kept: &dyn Fn(i64) -> bool| {
            let rows = batch.table(table).clone();
            let mask: arrow_array::BooleanArray =
                rows[key].as_primitive::<Int64Type>().values().iter().map(|&id| Some(kept(id))).collect();
            arrow_select::filter::filter_record_batch(&rows, &mask).unwrap().columns().to_vec()
        };
        let of_nodes = |id: i64| kept.contains(&id);
        prop_assert_eq!(
            rows(&batch, Table::Nodes, "node_id", &of_nodes), rows(&stored, Table::Nodes, "node_id", &of_nodes)
        );
        let of_drawn = |id: i64| drawn.contains(&id);
        for table in [Table::Steps, Table::Trajectories] {
            prop_assert_eq!(
                rows(&batch, table, "trajectory_id", &of_drawn), rows(&stored, table, "trajectory_id", &of_drawn)
            );
        }
    }
}
