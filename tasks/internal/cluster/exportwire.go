package cluster

import "github.com/lapsehq/lapse/tasks/internal/portable"

// A wireExportQuery is a portable.Query.
type wireExportQuery struct {
	Pass   portable.Pass  `json:"Pass,omitempty"`
	From   wireExportedAt `json:"From"`
	IDs    []string       `json:"IDs,omitempty"`
	Topics []string       `json:"Topics,omitempty"`
	Grant  []string       `json:"Grant,omitempty"`
	Bytes  int            `json:"Bytes,omitempty"`
	Items  int            `json:"Items,omitempty"`
	Brief  bool           `json:"Brief,omitempty"`
}

// A wireExportedAt is a portable.Position.
type wireExportedAt struct {
	Place uint64 `json:"Place,omitempty"`
	Label string `json:"Label,omitempty"`
	At    int64  `json:"At,omitempty"`
	ID    string `json:"ID,omitempty"`
}

// A wireExported is a portable.Item.
type wireExported struct {
	At     wireExportedAt `json:"At"`
	Record []byte         `json:"Record"`
	SeenAt int64          `json:"SeenAt,omitempty"`
}

// An exportReply is a portable.Part.
type exportReply struct {
	Coverage
	Items      []wireExported
	Last       *wireExportedAt `json:"Last,omitempty"`
	Unreadable int             `json:"Unreadable,omitempty"`
}

func encodeExportQuery(q *portable.Query) wireExportQuery {
	return wireExportQuery{q.Pass, wireExportedAt(q.From), q.IDs, q.Topics, q.Grant, q.Bytes, q.Items, q.Brief}
}

func (w *wireExportQuery) decode() portable.Query {
	return portable.Query{Pass: w.Pass, From: portable.Position(w.From), IDs: w.IDs, Topics: w.Topics, Grant: w.Grant, Bytes: w.Bytes, Items: w.Items, Brief: w.Brief}
}
