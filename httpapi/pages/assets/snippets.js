// The examples of /docs in other languages than that of a shell: the plain request, which each of
// them can send by itself, and the method of the client that does the same.

// methods are those of the clients for Go, TypeScript and Python, by operation.
const methods = {
  "schedule-task": "Schedule schedule schedule", "schedule-batch": "ScheduleBatch scheduleBatch schedule_batch", "list-tasks": "List list list", "get-task": "Get get get",
  "put-task": "Replace replace replace", "change-task": "Reschedule reschedule reschedule", "cancel-task": "Cancel cancel cancel", "fire-task": "Fire fire fire", "hold-task": "Hold hold hold",
  "resume-task": "Resume resume resume", "act-on-tasks": "Act act act", "list-group": "Group group group", "cancel-group": "CancelGroup cancelGroup cancel_group",
  "reserve-tasks": "Reserve reserve reserve", ack: "Ack ack ack", return: "Return giveBack give_back", release: "Release release release", extend: "Extend extend extend", bury: "Bury bury bury",
  "list-topics": "ListTopics listTopics list_topics", "get-topic": "Topic topic topic", "put-topic": "SetTopic setTopic set_topic", "patch-topic": "ChangeTopic changeTopic change_topic",
  "delete-topic": "DeleteTopic deleteTopic delete_topic", "pause-topic": "PauseTopic pauseTopic pause_topic", "resume-topic": "ResumeTopic resumeTopic resume_topic", "purge-topic": "Purge purge purge",
  "list-dead": "ListDead listDead list_dead", "requeue-dead": "RequeueDead requeueDead requeue_dead", "delete-dead": "DeleteDead deleteDead delete_dead", "list-nodes": "Nodes nodes nodes",
  "drain-node": "DrainNode drainNode drain_node", stats: "Stats stats stats", diagnosis: "Diagnosis diagnosis diagnosis", history: "History history history", forecast: "Forecast forecast forecast",
  "dead-reasons": "DeadReasons deadReasons dead_reasons", "get-node": "Node node node",
  search: "Search search search", "count-tasks": "Count count count", audit: "Audit audit audit", "undo-act": "Undo undo undo", waves: "Wave wave wave", alive: "Alive alive alive",
  events: "Events events events", ready: "Ready ready ready",
};

// by is the comment that names the client's method, "" if there is none.
const by = (operation, language, mark) => {
  const name = methods[operation]?.split(" ")[language];
  return name ? mark + " The client does this with " + name + ".\n" : "";
};

const isJSON = body => { try { JSON.parse(body); return true; } catch { return false; } };
const type = body => (isJSON(body) ? "application/json" : "application/x-ndjson");

function go({operation, method, url, body, token}) {
  const more = [token ? 'req.Header.Set("Authorization", "Bearer "+os.Getenv("TOKEN"))\n' : "", body ? `req.Header.Set("Content-Type", ${JSON.stringify(type(body))})\n` : ""].join("");
  const sent = !body ? "nil" : body.includes("`") ? `strings.NewReader(${JSON.stringify(body)})` : "strings.NewReader(`" + body + "`)";
  return by(operation, 0, "//") + `req, err := http.NewRequestWithContext(ctx, ${JSON.stringify(method)}, ${JSON.stringify(url)}, ${sent})
if err != nil {
	return err
}
${more}answer, err := http.DefaultClient.Do(req)
if err != nil {
	return err
}
defer answer.Body.Close()`;
}

function typescript({operation, method, url, body, token}) {
  const headers = [token ? "Authorization: `Bearer ${process.env.TOKEN}`" : "", body ? `"Content-Type": ${JSON.stringify(type(body))}` : ""].filter(Boolean);
  const sent = !body ? "" : isJSON(body) ? `\n  body: JSON.stringify(${body.replaceAll("\n", "\n  ")}),` : `\n  body: ${JSON.stringify(body)},`;
  return by(operation, 1, "//") + `const answer = await fetch(${JSON.stringify(url)}, {
  method: ${JSON.stringify(method)},${headers.length ? `\n  headers: { ${headers.join(", ")} },` : ""}${sent}
});
if (!answer.ok) throw new Error(await answer.text());`;
}

function python({operation, method, url, body, token}) {
  const headers = [token ? '"Authorization": "Bearer " + os.environ["TOKEN"]' : "", body ? `"Content-Type": ${JSON.stringify(type(body))}` : ""].filter(Boolean);
  return by(operation, 2, "#") + `import ${token ? "os, " : ""}urllib.request

request = urllib.request.Request(
    ${JSON.stringify(url)},
    method=${JSON.stringify(method)},${headers.length ? `\n    headers={${headers.join(", ")}},` : ""}${body ? `\n    data=${JSON.stringify(body)}.encode(),` : ""}
)
with urllib.request.urlopen(request) as answer:
    print(answer.read().decode())`;
}

export const languages = {Go: go, TypeScript: typescript, Python: python};
