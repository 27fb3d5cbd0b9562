{{- /* What every object is labelled with, besides what pods are selected by. */}}
{{- define "tdcd.labels" -}}
app.kubernetes.io/name: tdcd
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: {{ printf "tdcd-%s" .Values.silo | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end }}
