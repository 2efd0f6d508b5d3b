//! Published port names, which the hub keeps for the whole job.

use super::*;

impl Agent {
    pub(super) fn ask(&mut self, question: Question, asker: Asker) {
        self.askers.push_back(asker);
        match (&mut self.hub, &self.up) {
            (Some(hub), _) => {
                let answer = hub.answer(question);
                self.pass_answer(answer);
            }
            (None, Some(up)) => {
                let up = up.link;
                self.act(Action::Send(up, Letter::Ask(question)));
            }
            (None, None) => self.pass_answer(None),
        }
    }

    /// Passes an answer to the oldest asker: answers come in the order of the questions.
    pub(super) fn pass_answer(&mut self, answer: Option<String>) {
        match self.askers.pop_front() {
            Some(Asker::Link(link)) => self.act(Action::Send(link, Letter::Answer(answer))),
            Some(Asker::Rank { rank, thread, about }) => {
                let reply = match about {
                    About::Publish => Reply::Publish(answer.is_some()),
                    About::Unpublish => Reply::Unpublish(answer.is_some()),
                    About::LookUp => Reply::LookUp(answer),
                };
                self.act(Action::Reply { rank, reply, thread });
            }
            None => {}
        }
    }
}

impl Hub {
    pub(super) fn answer(&mut self, question: Question) -> Option<String> {
        match question {
            Question::Publish { name, port } => {
                let is_free = !self.names.contains_key(&name) && self.names.len() < NAMES_MAX;
                is_free.then(|| {
                    self.names.insert(name, port);
                    String::new()
                })
            }
            Question::Unpublish { name } => self.names.remove(&name),
            Question::LookUp { name } => self.names.get(&name).cloned(),
        }
    }
}
