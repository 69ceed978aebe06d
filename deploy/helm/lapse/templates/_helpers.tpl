{{- define "lapse.name" -}}
{{- if contains "lapse" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-lapse" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "lapse.selector" -}}
{app.kubernetes.io/name: lapse, app.kubernetes.io/instance: {{ .Release.Name | quote }}}
{{- end }}

{{- define "lapse.secret" -}}
{{ .Values.secret | default (include "lapse.name" .) }}
{{- end }}

{{- define "lapse.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}
