package respapi

// notify tells the subscribers of all nodes that something has happened to a key: class and event
// as Redis has them, such as classString and "set". It is called once the ledger has the change. An
// event may get lost between nodes, and is never repeated. It costs next to nothing as long as no
// subscriber of any node hears this class.
func (s *Server) notify(class classes, event string, key []byte) {
	if s.wanted()&class == 0 {
		return
	}
	topic, _ := s.topicOf(key)
	s.publishEvent(class, topic, event, string(key))
}

// notify is Server.notify, once the transaction of the command is written, if it is in one.
func (x *call) notify(class classes, event string, key []byte) {
	if x.tx != nil {
		x.tx.tell(class, event, key)
		return
	}
	x.c.server.notify(class, event, key)
}

// publishEvent tells the subscribers of all nodes of an event of some keys of a topic, once.
func (s *Server) publishEvent(class classes, topic, event string, keys ...string) {
	if classes(s.peers.all.Load())&class != 0 {
		for _, key := range keys {
			s.relayFrame(class, topic, event, key)
		}
	}
	s.hub.publishEvents(class, topic, event, keys, nil)
}
